"""Prove the Triton kernels on a GPU: ``python -m benchmarks.device.kernels [--out FOLDER] [--quick]``.

Five steps compile all kernels, check their results, time them, time other libraries and count launches. Each step is a
list of jobs that child processes perform, so that a job that crashes, poisons the GPU's context or never ends is
reported and the others go on. The file kernels.txt has tables, and kernels.json all records. Takes less than five
minutes; ``--quick`` tries everything at tiny sizes, also on CPU tensors in the interpreter of triton.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import structinf
import structinf_oracles
from benchmarks.device import kernel_checks
from benchmarks.device.kernel_rows import PEERS, ROWS, Row, Work
from benchmarks.speed import report, worker
from benchmarks.timing import quartiles
from structinf.kernels import gpu

__all__ = ["STEPS", "main", "perform", "run_step"]

Record = dict[str, Any]
STALL = 45.0  # seconds after which a job counts as one that never ends
REPEATS, BUDGET = 20, 0.3  # of a timed function: repeats, and seconds
COPIED = 1 << 29  # bytes of the copy that measures the bandwidth
EXPONENTIALS_PER_CLOCK = 16  # of a multiprocessor (CUDA C++ programming guide, throughput of native arithmetic)
USUAL_CLOCK = 1.8e9
HOST_MS = 0.03
TARGET = "2 × max(levels × 1 µs, bytes / bandwidth, exponentials / peak) + 30 µs"


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _uses_kernels() -> bool:
    return gpu.uses_triton(torch.empty(0, device=_device()))


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ----------------------------------------------------------------------------- compile


@contextlib.contextmanager
def _recorded_launches() -> Iterator[dict[str, float]]:
    """Record the seconds of the first launch of each kernel, for each set of dtypes and constants."""
    for package in (structinf, structinf_oracles):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "triton" in module.name.rpartition(".")[2]:
                importlib.import_module(module.name)
    seconds: dict[str, float] = {}

    def launch(kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
        dtypes = [str(a.dtype).removeprefix("torch.") for a in arguments if isinstance(a, Tensor)]
        key = f"{kernel.fn.__name__}({', '.join(dtypes)}; {', '.join(f'{k}={v}' for k, v in options.items())})"
        start = time.perf_counter()
        try:
            gpu.launch(kernel, grid, *arguments, **options)
        except Exception as error:
            raise RuntimeError(f"{key}: {error}") from error
        seconds.setdefault(key, round(time.perf_counter() - start, 4))

    owners = (gpu.__name__, f"{gpu.__name__}.launch")
    users = [u for u in list(sys.modules.values()) if vars(u).get("launch") is gpu.launch and u.__name__ not in owners]
    for user in users:
        vars(user)["launch"] = launch
    try:
        yield seconds
    finally:
        for user in users:
            vars(user)["launch"] = gpu.launch


def _compile(name: str, quick: bool) -> Record:
    with _recorded_launches() as seconds:
        if name in ROWS:
            row = ROWS[name]
            for batch in (1, 2) if quick else row.batches[:2]:
                row.make(_device(), batch, **(row.quick if quick else row.size)).run()
        else:
            kernel_checks.perform(name, _device(), quick, once=True)
        _synchronize()
    return {"kernels": seconds}


# ----------------------------------------------------------------------------- check


def _check(name: str, quick: bool) -> Record:
    faults = kernel_checks.perform(name, _device(), quick)
    return {"faults": faults} if faults else {}


# ----------------------------------------------------------------------------- time


def _timed_jobs() -> list[str]:
    """Return row|batch|path: all kernels, then torch operations and the CPU, which a deadline may cut."""
    jobs = [f"{name}|{batch}|{path}" for name, row in ROWS.items() for batch in row.batches for path in row.paths]
    paths = {path: i for i, path in enumerate(("triton", "cpu", "torch"))}
    return ["bandwidth|0|", *sorted(jobs, key=lambda job: paths[job.rpartition("|")[2]])]


def _measure(run: Callable[[], Any], device: str, quick: bool) -> list[float]:
    """Return the lower quartile, the median and the upper quartile of milliseconds, after two calls."""
    run()
    _synchronize()
    start = time.perf_counter()
    run()
    _synchronize()
    seconds = time.perf_counter() - start
    samples = []
    for _ in range(1 if quick else max(1, min(REPEATS, int(BUDGET / seconds)))):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end))
        else:
            start = time.perf_counter()
            run()
            samples.append(1e3 * (time.perf_counter() - start))
    return list(quartiles(samples))


def _bandwidth(device: str, quick: bool) -> Record:
    x = torch.zeros(64 if quick else COPIED // 4, device=device)
    y = torch.empty_like(x)
    ms = _measure(lambda: y.copy_(x), device, quick)
    record: Record = {"ms": ms, "bandwidth": 2 * x.numel() * 4 / ms[1] * 1e3}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        clock = 1e3 * getattr(properties, "clock_rate", 0) or USUAL_CLOCK
        record["exponentials"] = properties.multi_processor_count * EXPONENTIALS_PER_CLOCK * clock
    return record


def _time(job: str, quick: bool) -> Record:
    name, batch, path = job.split("|")
    if name == "bandwidth":
        return _bandwidth(_device(), quick)
    row, device = ROWS[name], "cpu" if path == "cpu" else _device()
    if path == "triton" and not _uses_kernels():
        return {"left_out": "no Triton kernels here"}
    size, number = (row.quick, 2) if quick else (row.size, int(batch))
    work = row.make(device, number, **size)
    with kernel_checks.torch_operations() if path != "triton" else contextlib.nullcontext():
        ms = _measure(work.run, device, quick)
        results = work.run()
    record: Record = {"row": name, "batch": int(batch), "path": path, "ms": ms}
    if path == "triton":
        record |= _needs(row, size, number, work, results)
    return record


def _needs(row: Row, size: Mapping[str, int], batch: int, work: Work, results: Iterable[Tensor]) -> Record:
    """Count the bytes of inputs, outputs and int32 tables (a part and two tails a hyperedge), and exponentials."""
    numbers = sum(t.numel() * t.element_size() for t in (*work.inputs, *results))
    hyperedges = row.hyperedges(**size)
    return {
        "bytes": numbers + 12 * hyperedges,
        "exponentials": batch * hyperedges * row.passes,
        "levels": None if row.levels is None else row.levels(**size) * row.passes,
    }


def _add_targets(records: Sequence[Record]) -> None:
    """Add GB/s, the target in milliseconds and the target divided by the time to the records of kernels."""
    machine = next((r for r in records if "bandwidth" in r), None)
    for record in records:
        if "bytes" not in record:
            continue
        ms = record["ms"][1]
        record["GB/s"] = record["bytes"] / ms / 1e6
        if machine is None or "exponentials" not in machine or record["levels"] is None:
            continue
        moved, raised = (
            1e3 * record[key] / machine[rate]
            for key, rate in (("bytes", "bandwidth"), ("exponentials", "exponentials"))
        )
        record["target"] = 2 * max(1e-3 * record["levels"], moved, raised) + HOST_MS
        goal = ROWS[record["row"]].goal
        if goal is not None and record["batch"] == 32:
            record["target"] = goal
        record["share"] = record["target"] / ms


# ----------------------------------------------------------------------------- other libraries, launches


def _time_peer(name: str, quick: bool) -> Record:
    try:
        work = PEERS[name](_device())
        work.run()
    except ModuleNotFoundError as error:
        return {"left_out": f"not installed: {error.name}"}
    return {"ms": _measure(work.run, _device(), quick)}


_COUNTED = {
    "launches": ("LaunchKernel",),
    "synchronisations": ("Synchronize",),
    "copies": ("Memcpy",),
    "fills": ("Memset",),
}


def _profile(name: str, quick: bool) -> Record:
    """Count the calls of the CUDA runtime and driver in one call of a row, for a batch of 32 or the row's first."""
    row = ROWS[name]
    work = row.make(_device(), 2 if quick else row.batches[0], **(row.quick if quick else row.size))
    work.run()
    _synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        work.run()
    # Names of calls start with "cuda" or "cu"; the profiler itself waits for the device once at its end.
    calls = {e.key: e.count for e in profile.key_averages() if e.key.startswith("cu")}
    counts: Record = {
        what: sum(count for key, count in calls.items() if any(word in key for word in words))
        for what, words in _COUNTED.items()
    }
    return counts | {"calls": calls}


# ----------------------------------------------------------------------------- steps and child processes


@dataclass(frozen=True)
class Step:
    """Jobs, the function that performs one, and the seconds and processes for all of them."""

    jobs: Sequence[str]
    perform: Callable[[str, bool], Record]
    seconds: float
    workers: int = 1


STEPS: Mapping[str, Step] = {
    "compile": Step([*ROWS, *kernel_checks.CHECKS], _compile, 60, 12),
    "check": Step(list(kernel_checks.CHECKS), _check, 75, 10),
    "time": Step(_timed_jobs(), _time, 90),
    "peers": Step(list(PEERS), _time_peer, 20),
    "profile": Step(list(ROWS), _profile, 20),
}


def perform(step: str, job: str, quick: bool) -> Record:
    """Return the record of a job; ``error`` holds the text of an error."""
    start = time.perf_counter()
    record: Record = {"job": job}
    try:
        record |= STEPS[step].perform(job, quick)
        _synchronize()
    except Exception as error:
        # A kernel's error of compilation has many lines: its end names the cause.
        record["error"] = f"{type(error).__name__}: {error}"[-1500:]
        record["trace"] = "".join(traceback.format_tb(error.__traceback__)[-3:])[-1500:]
    record["seconds"] = round(time.perf_counter() - start, 3)
    return record


def _work(step: str, records: Path, quick: bool) -> int:
    """Perform the jobs on standard input in a child process; stop when the GPU's context is lost."""
    torch.set_num_threads(worker.cores() if STEPS[step].workers == 1 else 1)
    with records.open("a", encoding="utf-8") as file:
        for job in sys.stdin.read().splitlines():
            print(json.dumps({"begin": job}), file=file, flush=True)
            record = perform(step, job, quick)
            print(json.dumps(record), file=file, flush=True)
            if "CUDA error" in record.get("error", "") or "illegal" in record.get("error", ""):
                return 3
    return 0


def run_step(step: str, jobs: Sequence[str], seconds: float, workers: int, quick: bool = False) -> list[Record]:
    """Return the records of the jobs, performed by child processes. A job without a record was not reached in time."""
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(workers) as pool:
        shares = [list(jobs[i::workers]) for i in range(workers)]
        found = pool.map(lambda share: _run_share(step, share, deadline, quick), shares)
    by_job = {record["job"]: record for share in found for record in share}
    late = {"error": "not reached in the time of the step"}
    return [by_job.get(job, {"job": job, **late}) for job in jobs]


def _run_share(step: str, jobs: Sequence[str], deadline: float, quick: bool) -> list[Record]:
    records: list[Record] = []
    left = list(jobs)
    while left and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            path, log = Path(folder) / "records", Path(folder) / "log"
            path.touch()
            reason = _run_child(step, left, path, log, deadline, quick)
            written = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
            tail = log.read_text("utf-8", errors="replace")[-1000:]
        done = [record for record in written if "job" in record]
        records += done
        finished = {record["job"] for record in done}
        begun = [r["begin"] for r in written if "begin" in r and r["begin"] not in finished]
        if not written:
            begun = left[:1]  # the process failed before its first job
        records += ({"job": job, "error": f"{reason}: {tail}"} for job in begun)
        left = [job for job in left if job not in finished and job not in begun]
    return records


def _run_child(step: str, jobs: Sequence[str], path: Path, log: Path, deadline: float, quick: bool) -> str:
    """Run a process for the jobs until it ends, stalls, or the deadline has come; return how it ended."""
    command = [sys.executable, "-m", "benchmarks.device.kernels", "--step", step, "--records", str(path)]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command + ["--quick"] * quick, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True
        )
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write("\n".join(jobs))
        size, changed = -1, time.monotonic()
        while child.poll() is None:
            time.sleep(0.1)
            now = time.monotonic()
            if path.stat().st_size != size:
                size, changed = path.stat().st_size, now
            if now > deadline or (now > changed + STALL and not quick):
                child.kill()
                child.wait()
                return "the time of the step ended" if now > deadline else f"no end within {STALL:g} s"
    return f"the process ended with code {child.returncode}"


# ----------------------------------------------------------------------------- the command


def main(arguments: list[str] | None = None) -> int:
    """Run the steps, print the tables and write kernels.txt and kernels.json. Return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only tries everything out")
    parser.add_argument("--only", default="", metavar="TEXT", help="the jobs whose name contains TEXT")
    parser.add_argument("--workers", type=int, help="the number of processes of a step that shares its jobs")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.records:
        return _work(options.step, options.records, options.quick)
    machine = report.machine() | _gpu() | {"Triton kernels": "used" if _uses_kernels() else "not used"}
    records: dict[str, list[Record]] = {}
    failed = torch.cuda.is_available() and not _uses_kernels()
    for name, step in STEPS.items():
        workers = min(step.workers, options.workers or os.cpu_count() or 1)
        jobs = [job for job in step.jobs if options.only in job]
        start = time.monotonic()
        records[name] = run_step(name, jobs, step.seconds * (10 if options.quick else 1), workers, options.quick)
        if name == "time":
            _add_targets(records[name])
        failed = failed or any("error" in r or "faults" in r for r in records[name])
        print(f"{name}: {len(jobs)} jobs in {time.monotonic() - start:.0f} s", flush=True)
        if options.out:  # after each step, so that an interrupted run leaves what it has
            _write(options.out, machine, records)
    print("\n".join(_tables(machine, records)))
    return int(failed)


def _gpu() -> dict[str, str]:
    with contextlib.suppress(ImportError):
        return {
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "triton": importlib.import_module("triton").__version__,
        }
    return {"gpu": "none", "triton": "none"}


def _write(folder: Path, machine: Mapping[str, str], records: Mapping[str, list[Record]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "target": TARGET, "records": records}
    (folder / "kernels.json").write_text(json.dumps(content, indent=1), "utf-8")
    (folder / "kernels.txt").write_text("\n".join(_tables(machine, records)) + "\n", "utf-8")


def _tables(machine: Mapping[str, str], records: Mapping[str, list[Record]]) -> Iterator[str]:
    yield from (f"{key}: {value}" for key, value in machine.items())
    for step, found in records.items():
        bad = [r for r in found if "error" in r or "faults" in r]
        yield f"\n== {step}: {len(found) - len(bad)} of {len(found)} jobs without a fault"
        yield from _LINES[step](found)
        for record in bad:
            reasons = record.get("faults") or [" ".join(record["error"].split())]
            yield from (f"  FAILED {record['job']}: {reason[-400:]}" for reason in reasons[:4])


def _kernel_lines(records: Sequence[Record]) -> Iterator[str]:
    seconds: dict[str, float] = {}
    for record in records:
        for key, value in record.get("kernels", {}).items():
            seconds[key] = max(value, seconds.get(key, 0.0))
    yield f"{len(seconds)} kernels with their dtypes and constants; seconds of the first launch:"
    yield from (f"  {value:8.3f}  {key}" for key, value in sorted(seconds.items()))
    missing = _launched_names() - {key.partition("(")[0] for key in seconds}
    yield f"kernels that no job launched: {', '.join(sorted(missing)) or 'none'}"


def _launched_names() -> set[str]:
    """Return the names of the kernels that the modules launch."""
    folders = [Path(folder) for package in (structinf, structinf_oracles) for folder in package.__path__]
    sources = [path.read_text("utf-8") for folder in folders for path in folder.rglob("*triton*.py")]
    return {name for source in sources for name in re.findall(r"\blaunch\(\s*(\w+),", source)}


def _time_lines(records: Sequence[Record]) -> Iterator[str]:
    yield f"milliseconds (median); target: {TARGET}"
    columns = ("B", "triton", "torch", "cpu", "GB/s", "target", "share")
    yield f"  {'':<42}" + "".join(f"{c:>10}" for c in columns)
    rows: dict[tuple[str, int], Record] = {}
    for record in records:
        if "row" in record:
            row = rows.setdefault((record["row"], record["batch"]), {})
            row[record["path"]] = record["ms"][1]
            row |= {key: record[key] for key in ("GB/s", "target", "share") if key in record}
        elif "bandwidth" in record:
            yield f"  a copy moves {record['bandwidth'] / 1e9:.4g} GB/s"
    for (name, batch), row in sorted(rows.items(), key=lambda item: (list(ROWS).index(item[0][0]), item[0][1])):
        yield f"  {name:<42}{batch:>10}" + "".join(f"{row[c]:>10.3g}" if c in row else f"{'':>10}" for c in columns[1:])


def _peer_lines(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if "error" not in record:
            shown = f"{record['ms'][1]:.3g} ms" if "ms" in record else record["left_out"]
            yield f"  {record['job']:<52}{shown}"


def _profile_lines(records: Sequence[Record]) -> Iterator[str]:
    yield f"  {'':<42}" + "".join(f"{c:>18}" for c in _COUNTED)
    for record in records:
        if "error" not in record:
            yield f"  {record['job']:<42}" + "".join(f"{record[c]:>18}" for c in _COUNTED)
    yield "  the profiler's own wait at its end is counted"


_LINES: Mapping[str, Callable[[Sequence[Record]], Iterator[str]]] = {
    "compile": _kernel_lines,
    "check": lambda records: iter(()),
    "time": _time_lines,
    "peers": _peer_lines,
    "profile": _profile_lines,
}


if __name__ == "__main__":
    sys.exit(main())
