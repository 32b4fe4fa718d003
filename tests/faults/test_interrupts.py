"""Ctrl-C during long calls: a child process gets SIGINT while a solver or a compiled loop runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT")]

PROGRAM = Path(__file__).parent.parent / "helpers" / "interrupt_scenarios.py"

PROMPT = 9.0
"""Seconds after which a call counts as not interrupted. The calls need at least 10 seconds on an idle machine."""


def outcomes(scenarios: list[str], **variables: str) -> Iterator[tuple[str, str, float, str]]:
    """Yield the name, the outcome, the seconds and the state of each scenario, in a child that gets signals."""
    environment = {**os.environ, **variables}
    command = [sys.executable, str(PROGRAM), *scenarios]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                kind, *fields = line.strip().split("\t")
                if kind == "begin":
                    time.sleep(0.3)  # the solver starts
                    child.send_signal(signal.SIGINT)
                elif kind == "end":
                    name, outcome, seconds, state = fields
                    yield name, outcome, float(seconds), state
        finally:
            if child.poll() is None and not sys.exc_info()[0]:
                child.wait(timeout=60)
            child.kill()
    assert child.returncode == 0


# HiGHS goes on in the background, and takes time from what comes after it.
INTERRUPTED = [
    *("tour:1", "tours:2", "perturbed:2", "milp-cp_sat:1", "constraint_model:1", "solutions:1"),
    *("rows:1", "rows:2", "one-row:1", "assignment:1", "matching:1", "milp-highs:1", "milps-highs:2"),
]
CONTINUED = ["tour-limit:1", "milp-highs-limit:1"]


SAMPLE = ["milp-highs-limit:1", "tour:1", "perturbed:2", "milp-cp_sat:1", "rows:2", "assignment:1"]
"""One call of each kind; --full interrupts all."""


def test_interrupts(request):
    """KeyboardInterrupt reaches the caller, unless the program's own handler of signals does not raise it."""
    scenarios = [*(f"{name}:continues" for name in CONTINUED), *(f"{name}:raises" for name in INTERRUPTED)]
    if not request.config.getoption("--full"):
        scenarios = [name for name in scenarios if name.rpartition(":")[0] in SAMPLE]
    found = list(outcomes(scenarios))
    assert [name for name, *_ in found] == [scenario.partition(":")[0] for scenario in scenarios]
    assert {name: state for name, _, _, state in found if state != "right"} == {}
    for name, outcome, seconds, _ in found:
        if "limit" in name:
            assert (outcome, seconds > 1.4) == ("returned with ConvergenceWarning", True), name
        else:
            assert (outcome, seconds < PROMPT) == ("KeyboardInterrupt", True), name


def test_an_interrupted_compilation_is_completed(tmp_path):
    (found,) = outcomes(["compilation:1:raises"], NUMBA_CACHE_DIR=str(tmp_path))
    _, outcome, _, state = found
    assert (outcome, state) == ("KeyboardInterrupt", "right")
