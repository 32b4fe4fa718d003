"""Measure one case in a separate process: ``python -m benchmarks.speed.worker CASE --record FILE``."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

__all__: list[str] = []


def main() -> None:
    """Write the record of the case as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(cores())
    record = find_case(arguments.case).measure(arguments.repeats, arguments.quick)
    arguments.record.write_text(json.dumps(record), "utf-8")


def find_case(name: str) -> Any:
    """Return a case, a limit or a scaling by its name."""
    from .cases import CASES
    from .scaling_cases import SCALINGS

    return {**CASES, **SCALINGS}[name]


def cores() -> int:
    """Return the number of processor cores of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
