"""Compare the speed of structinf with other libraries; see benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from . import report
from .cases import CASES
from .cold_start import COLD_STARTS
from .scaling_cases import SCALINGS
from .worker import find_case

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen cases, each in its own process. Return 1 if a case fails or results differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument(
        "--case", action="append", metavar="NAME", help="a case, or the beginning of its name; repeatable"
    )
    parser.add_argument(
        "--repeats", type=int, default=15, help="rounds, in each of which every contender is timed once"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: tries everything out, its ratios mean nothing"
    )
    parser.add_argument(
        "--out", action="append", type=Path, default=[], metavar="FILE", help="also to FILE.json or FILE.md"
    )
    parser.add_argument("--list", action="store_true", help="only list the cases")
    parser.add_argument(
        "--cold",
        action="store_true",
        help="measure first calls with an empty kernel cache instead: every relaxation of every structure, in an hour",
    )
    parser.add_argument(
        "--scaling",
        action="store_true",
        help="measure how time and memory grow with the size instead, with one thread and with all",
    )
    options = parser.parse_args(arguments)
    cases = COLD_STARTS if options.cold else SCALINGS if options.scaling else CASES
    wanted = [name if name in cases else f"{name}*" for name in options.case or ["*"]]
    chosen = [name for name in cases if any(fnmatch(name, pattern) for pattern in wanted)]
    if not chosen:
        parser.error(f"no case is called {' or '.join(options.case)}; there are {', '.join(cases)}")
    if options.list:
        print("\n".join(f"{name:<40}{cases[name].describe()}" for name in chosen))
        return 0
    print("\n".join(f"{key}: {value}" for key, value in report.machine().items()))
    print("median ms (quartiles), times ours\n", flush=True)
    records = []
    for name in chosen:
        records.append(_measure(name, options.repeats, options.quick))
        print("\n".join(report.lines(records[-1])), flush=True)
        # Write after each case, so that an interrupted run keeps its finished cases.
        for path in options.out:
            report.write(path, records)
    print(f"\n{report.summary(records)}")
    return int(any(_is_wrong(record) for record in records))


def _measure(name: str, repeats: int, quick: bool) -> dict[str, Any]:
    """Return the record of a case, measured in a new process without the imports and the memory of other cases."""
    if name in COLD_STARTS:  # which starts the processes itself
        return COLD_STARTS[name].measure(repeats, quick)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "record.json")
        command = [sys.executable, "-m", "benchmarks.speed.worker", name, "--record", file, "--repeats", str(repeats)]
        # Idle OpenMP threads would spin and slow down other processes of a shared machine.
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run(
            command + ["--quick"] * quick, env=environment, capture_output=True, text=True, errors="replace"
        )
        if done.returncode == 0:
            return json.loads(file.read_text("utf-8"))
    message = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return {"case": name, "what": find_case(name).describe(quick), "error": message}


def _is_wrong(record: dict[str, Any]) -> bool:
    return "error" in record or any(row.get("wrong") for row in record["rows"].values())


if __name__ == "__main__":
    sys.exit(main())
