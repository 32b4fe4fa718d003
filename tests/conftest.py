"""Set-up of every test process: shapes checked, seeds fixed, GPU tests only where there is a GPU."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import zlib
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
    settings.register_profile("structinf_full", deadline=None, derandomize=True)
    settings.register_profile("structinf_sample", deadline=None, derandomize=True, max_examples=25)


# Programs that tests/wheel/run starts against an installed wheel; importing them here would register their plugin.
collect_ignore = ["wheel"]


SAMPLE = 10
"""Without --full, each test marked ``matrix`` runs for one combination of its parameters in this number."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help=f"run tests marked 'matrix' for all combinations of their parameters, instead of one in {SAMPLE}",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Registered first, so this runs last. Python needs some seconds to delete the objects of all tests, and a process
    # of pytest-xdist has reported everything by then. Elsewhere, triton would warn of objects that are frozen.
    atexit.register(*(os._exit, 0) if hasattr(config, "workerinput") else (gc.unfreeze,))
    if importlib.util.find_spec("hypothesis"):
        settings.load_profile("structinf_full" if config.getoption("--full") else "structinf_sample")


def pytest_sessionstart() -> None:
    # Collection makes millions of objects and no garbage: searching them for cycles takes a third of its time.
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the collected tests out of every later search for garbage."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect combinations that only --full runs; without a GPU, skip one test of each GPU function, drop the rest."""
    if not config.getoption("--full"):
        left_out = set(_left_out([item for item in items if item.get_closest_marker("matrix")]))
        left_out |= {item for item in items if item.get_closest_marker("full")}
        left_out |= set(_beyond_sample([item for item in items if item not in left_out]))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    seen, dropped = set(), []
    for item in items:
        if item.get_closest_marker("cuda"):
            # Thousands of combinations would be distributed and reported only to be skipped.
            if (item.path, item.originalname) in seen:
                dropped.append(item)
            seen.add((item.path, item.originalname))
            item.add_marker(skip)
    config.hook.pytest_deselected(items=dropped)
    gone = set(dropped)
    items[:] = [item for item in items if item not in gone]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of checks of the battery: the sum of the property ``checks`` of its tests."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    properties = [found for report in reports if report.when == "call" for found in report.user_properties]
    if checks := [value for name, value in properties if name == "checks"]:
        terminalreporter.write_line(f"battery: {sum(checks):,} checks of {len(checks)} structures")


def _beyond_sample(items: list[Any]) -> Iterator[Any]:
    """Yield the cases that only --full runs, of tests marked ``sampled(n)``: all but each n-th."""
    seen: dict[Any, int] = defaultdict(int)
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            if seen[item.function] % mark.args[0]:
                yield item
            seen[item.function] += 1


def _left_out(items: list[Any]) -> Iterator[Any]:
    """Yield the combinations that only --full runs.

    The default run has the combinations whose parameters' numbers have a sum divisible by SAMPLE, as in a Latin square,
    and the first combination with each value that none of them has. So each value of each parameter stays. Tests with a
    single varying parameter stay whole.
    """
    numbers: dict[tuple[Any, str], dict[int, int]] = defaultdict(dict)
    for item in items:
        for name, value in item.callspec.params.items():
            seen = numbers[item.function, name]
            seen.setdefault(id(value), len(seen))

    def values(item: Any) -> set[tuple[Any, str, int]]:
        return {(item.function, name, numbers[item.function, name][id(v)]) for name, v in item.callspec.params.items()}

    rest, kept = [], set()
    for item in items:
        varying = sum(len(numbers[item.function, name]) > 1 for name in item.callspec.params)
        if varying > 1 and sum(number for *_, number in values(item)) % SAMPLE:
            rest.append(item)
        else:
            kept |= values(item)
    for item in rest:
        if values(item) <= kept:
            yield item
        else:
            kept |= values(item)


@pytest.fixture
def conformance_dtypes(request: pytest.FixtureRequest) -> Any:
    """Return the dtypes that a conformance suite tests: with --full both; otherwise float64 and float32 in turn."""
    import torch

    both = (torch.float64, torch.float32)
    if request.config.getoption("--full"):
        return both
    turn = zlib.crc32(request.node.name.encode()) % 2
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
