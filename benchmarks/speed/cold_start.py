"""The first call of every relaxation of every structure, and of every map to the simplex, with an empty kernel cache.

Each measurement runs in a new process. The time is the processor time of the call, including the import of numba; a
busy machine changes it little.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from structinf.command_line import warmup

__all__ = ["COLD_STARTS", "ColdStart"]

SCRIPT = """
import json, sys, time, warnings
import torch
from structinf.command_line.warmup import WorkItem

warnings.simplefilter("ignore")
torch.ones(1, requires_grad=True).backward(torch.ones(1))  # torch imports more modules in its first backward pass
times = [time.process_time()]
total = WorkItem(*sys.argv[1:]).forward()
times.append(time.process_time())
if total.requires_grad:
    total.backward()
times.append(time.process_time())
print(json.dumps([times[1] - times[0], times[2] - times[0]]))
"""


@dataclass(frozen=True)
class ColdStart:
    """The processor time of a first call.

    Attributes
    ----------
    at_most : float
        Upper bound of the forward and backward pass together, in seconds.
    """

    structure: str
    method: str
    at_most: float

    @property
    def name(self) -> str:
        return f"cold-{self.structure}-{self.method}"

    def describe(self, quick: bool = False) -> str:
        """Return the description of the call."""
        return f"{self.method} of {self.structure}, first call with an empty cache, CPU time"

    def measure(self, repeats: int, quick: bool = False) -> dict[str, Any]:
        """Return the record of this call, in the form of a case's record."""
        samples = [self._seconds() for _ in range(1 if quick else min(repeats, 3))]
        forward, both = (statistics.median(column) for column in zip(*samples, strict=True))
        rows = {"forward": {"s": forward}, "forward and backward": {"s": both}}
        verdict = {"at_most": self.at_most, "reached": both, "unit": "s", "met": both <= self.at_most}
        return {"case": self.name, "what": self.describe(quick), "rows": rows, "missing": [], "target": verdict}

    def _seconds(self) -> list[float]:
        """Return the processor seconds of the forward pass, and of the forward and backward pass."""
        command = [sys.executable, "-c", SCRIPT, self.structure, self.method]
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
            # An installed package has bytecode. Without it, a process compiles several hundred modules of numba.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])


COLD_STARTS = {
    case.name: case
    for name in (warmup.SIMPLEX, *warmup.list_structures())
    for item in warmup.work_items(name)
    for case in [ColdStart(item.structure, item.method, 1.5 if name == warmup.SIMPLEX else 4.0)]
}
