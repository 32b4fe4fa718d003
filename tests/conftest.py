"""Set-up of every test process: shapes checked, seeds fixed, GPU tests only where there is a GPU."""

from __future__ import annotations

import importlib.util
import os

import pytest

# Idle OpenMP threads that spin starve their neighbours on shared machines; read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("MPLBACKEND", "agg")

# A machine lent for the GPU tests may have pytest and no more.
if all(importlib.util.find_spec(name) for name in ("jaxtyping", "typeguard")):
    from jaxtyping import install_import_hook

    from shape_check import annotated_modules

    # Before anything imports them: each of their functions then checks its annotated shapes at every call.
    install_import_hook(list(annotated_modules()), "shape_check.checked")

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples in every run; and a first call may compile a kernel, so no deadline.
    settings.register_profile("structinf", deadline=None, derandomize=True)
    settings.load_profile("structinf")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU."""
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Make every test draw the same numbers, whatever ran before it."""
    import torch

    torch.manual_seed(0)
