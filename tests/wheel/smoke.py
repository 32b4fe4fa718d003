"""What an installed wheel must do, away from the checkout and without any extra. Run by tests/wheel/run."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import torch

import structinf as si
import structinf_oracles


def main() -> None:
    prefix = Path(sys.prefix).resolve()
    for package in (si, structinf_oracles):
        folder = Path(package.__file__).resolve().parent
        assert prefix in folder.parents, f"{folder} is not the installed package"
        assert (folder / "py.typed").exists()
    tops = {path.parts[0] for path in files("structinf") if path.parts[0] != ".."}
    assert tops == {"structinf", "structinf_oracles", f"structinf-{si.__version__}.dist-info"}, tops

    # A kernel of each kind: each that is added costs seconds of compilation.
    potentials = {
        "arborescence": (torch.randn(2, 5, 5), ("marginals",)),
        "assignment": (torch.randn(2, 4, 4), ("map",)),
        "categorical": (torch.randn(2, 5), ("map", "marginals", "sparsemap")),
        "chain": ((torch.randn(2, 6, 3), torch.randn(3, 3)), ("map", "marginals")),
    }
    assert set(potentials) <= set(si.list_oracles())
    for name, (theta, relaxations) in potentials.items():
        for relaxation in relaxations:
            leaves = [t.clone().requires_grad_() for t in (theta if isinstance(theta, tuple) else (theta,))]
            mean = si.Layer(name, relaxation)(tuple(leaves) if isinstance(theta, tuple) else leaves[0])
            means = mean if isinstance(mean, tuple) else (mean,)
            assert all(m.isfinite().all() for m in means)
            if relaxation != "map":
                sum(m.square().sum() for m in means).backward()
                assert all(leaf.grad.isfinite().all() for leaf in leaves)
            print(f"{name} {relaxation}: ok")

    for command in ([str(prefix / "bin" / "structinf")], [sys.executable, "-m", "structinf"]):
        done = subprocess.run([*command, "list"], capture_output=True, text=True, check=True)
        assert "arborescence" in done.stdout
    print("command line: ok")

    demo = subprocess.run(
        [sys.executable, "-m", "structinf", "demo", "sort"], capture_output=True, text=True, check=False
    )
    assert demo.returncode != 0
    assert "structinf[demo]" in demo.stderr, demo.stderr
    print("missing extra named: ok")


if __name__ == "__main__":
    main()
