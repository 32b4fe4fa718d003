"""Set-up of every test process: shapes checked, seeds fixed, GPU tests only where there is a GPU."""

from __future__ import annotations

import importlib.util
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

# Idle OpenMP threads that spin starve their neighbours on shared machines; read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The tests keep all cores busy as it is, and a team would wait for one at every barrier; tests of threads ask for some.
THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
os.environ.setdefault("MPLBACKEND", "agg")

# A machine lent for the GPU tests may have pytest and no more.
if all(importlib.util.find_spec(name) for name in ("jaxtyping", "typeguard")):
    import shape_checker

    # Before anything imports the library: each of its functions then checks its annotated shapes at every call.
    shape_checker.install()

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples in every run; and a first call may compile a kernel, so no deadline.
    settings.register_profile("structinf", deadline=None, derandomize=True)
    settings.load_profile("structinf")


# Programs that tests/wheel/run starts against an installed wheel; importing them here would register their plugin.
collect_ignore = ["wheel"]


SAMPLE = 3
"""Without --full, each test marked ``matrix`` runs for one combination of its parameters in this number."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help=f"run tests marked 'matrix' for all combinations of their parameters, instead of one in {SAMPLE}",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect combinations that only --full runs, and skip GPU tests where there is no GPU."""
    if not config.getoption("--full"):
        left_out = set(_left_out([item for item in items if item.get_closest_marker("matrix")]))
        left_out |= {item for item in items if item.get_closest_marker("full")}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of checks of the battery: the sum of the property ``checks`` of its tests."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    properties = [found for report in reports if report.when == "call" for found in report.user_properties]
    if checks := [value for name, value in properties if name == "checks"]:
        terminalreporter.write_line(f"battery: {sum(checks):,} checks of {len(checks)} structures")


def _left_out(items: list[Any]) -> Iterator[Any]:
    """Yield the combinations that only --full runs: those whose parameters' numbers have a sum not divisible by SAMPLE.

    As in a Latin square, each value of each parameter stays. Tests with a single varying parameter stay whole.
    """
    numbers: dict[tuple[Any, str], dict[int, int]] = defaultdict(dict)
    for item in items:
        for name, value in item.callspec.params.items():
            seen = numbers[item.function, name]
            seen.setdefault(id(value), len(seen))
    for item in items:
        place = {name: numbers[item.function, name] for name in item.callspec.params}
        varying = sum(len(seen) > 1 for seen in place.values())
        if varying > 1 and sum(place[name][id(value)] for name, value in item.callspec.params.items()) % SAMPLE:
            yield item


@pytest.fixture
def conformance_dtypes(request: pytest.FixtureRequest) -> Any:
    """Return the dtypes that a conformance suite tests: with --full both; otherwise float64 and float32 in turn."""
    import torch

    both = (torch.float64, torch.float32)
    if request.config.getoption("--full"):
        return both
    turn = sum(request.node.callspec.indices.values()) % 2
    return both[turn : turn + 1]


@pytest.fixture(autouse=True)
def seed_and_threads() -> None:
    """Make every test draw the same numbers in as many threads, and check as much, whatever ran before it."""
    import torch

    torch.manual_seed(0)
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)
    # Compiling anything turns these checks off for the rest of the process.
    torch.distributions.Distribution.set_default_validate_args(True)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled, neither before a test nor after it."""
    import torch

    torch.compiler.reset()
    yield
    torch.compiler.reset()
