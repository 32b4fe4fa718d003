"""The wheel's contents, and a stranger's plugin: built, installed away from here, found by name, trained."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling import build

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent

# ----------------------------------------------------------------------------- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The project's wheel, made by its build backend in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        folder = tmp_path_factory.mktemp("dist")
        return folder / build.build_wheel(str(folder))


def test_wheel_holds_both_packages_whole_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(base).as_posix()
        for base, package in [(ROOT, "structinf"), (ROOT / "oracles", "structinf_oracles")]
        for path in (base / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert {"structinf/py.typed", "structinf_oracles/py.typed"} <= wanted
    assert names == wanted


def test_wheel_names_its_entry_points_license_and_needs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    (info,) = [path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info")]
    distribution = importlib.metadata.PathDistribution(info)
    groups = {point.group for point in distribution.entry_points}
    assert groups == {"console_scripts", "structinf.estimators", "structinf.oracles", "structinf.relaxations"}
    for point in distribution.entry_points:
        assert callable(point.load())
        assert f"{point.module.replace('.', '/')}.py" in names
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    assert distribution.read_text("licenses/LICENSE")
    needs = [re.match(r"[\w-]+", row)[0] for row in distribution.requires or [] if "extra ==" not in row]
    assert sorted(needs) == ["numba", "numpy", "scipy", "torch", "typing-extensions"]


# ----------------------------------------------------------------------------- a stranger's plugin

PLUGIN = """\
from dataclasses import dataclass
import torch
import structinf as si

@dataclass(frozen=True)
class Knapsack(si.Oracle):
    capacity: int
    event_ndim = 1
    def argmax(self, theta):
        y = torch.cartesian_prod(*[torch.arange(2)] * theta.shape[1]).view(-1, theta.shape[1])
        y = y[(y * torch.arange(1, theta.shape[1] + 1)).sum(1) <= self.capacity].to(theta)
        return y[torch.where(y == 1, theta[:, None], 0).sum(2).argmax(1)]
"""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "stranger"
version = "3.2.1"

[project.entry-points."structinf.oracles"]
knapsack2 = "stranger:Knapsack"
lost = "stranger.nowhere:Lost"
"""

RIVAL = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "rival"
version = "0.0.1"

[project.entry-points."structinf.oracles"]
contested = "rival:First"
chain = "rival:Chain"
"""


def install(folder: Path, project: str, source: str, target: Path) -> None:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(project, "utf-8")
    (folder / f"{folder.name}.py").write_text(source, "utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--target", str(target), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def plugins(tmp_path_factory) -> Path:
    """A folder into which two other people's distributions are installed."""
    work, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    install(work / "stranger", PROJECT, PLUGIN, target)
    install(work / "rival", RIVAL, PLUGIN, target)
    return target


def run(script: str, site: Path) -> str:
    """Output of ``script`` in an interpreter that sees ``site``, with warnings as errors."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_strangers_oracle_keeps_the_laws_and_trains(plugins):
    assert PLUGIN.count("\n") == 12
    script = """
import torch
import structinf as si

assert "knapsack2" in si.list_oracles()
oracle = si.get_oracle("knapsack2", capacity=10)
assert type(oracle).__module__ == "stranger"
si.testing.check_oracle(oracle, event_shape=(6,), dtypes=[torch.float32])
si.testing.check_relaxation("sparsemap", oracle, event_shape=(6,), dtypes=[torch.float32])

torch.manual_seed(0)
features = torch.randn(64, 5)
gold = si.relax(features @ torch.randn(5, 6), oracle, "map")
model = torch.nn.Sequential(torch.nn.Linear(5, 6), si.Layer("knapsack2", "sparsemap", capacity=10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
losses = []
for _ in range(40):
    loss = (model(features) - gold).square().sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.25 * losses[0], losses
print("trained")
"""
    assert run(script, plugins) == "trained\n"


def test_a_broken_or_contested_name_fails_only_when_asked_for(plugins):
    script = """
import structinf as si
from structinf import PluginError

assert {"lost", "chain", "assignment"} <= set(si.list_oracles())
si.get_oracle("assignment")
for name in ("lost", "chain", "contested"):
    try:
        si.get_oracle(name)
    except PluginError as error:
        print(name, *[who for who in ("structinf", "stranger", "rival") if f"distribution {who} " in str(error)])
"""
    assert run(script, plugins).splitlines() == ["lost stranger", "chain structinf rival", "contested rival"]
