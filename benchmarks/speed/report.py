"""Write records as text, Markdown and JSON, with a description of the machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from . import peers
from .worker import cores

__all__ = ["lines", "machine", "summary", "write"]

Record = Mapping[str, Any]


def lines(record: Record) -> Iterator[str]:
    """Yield the plain text of a case."""
    yield f"{record['case']}: {record['what']}"
    if "error" in record:
        yield f"    failed: {record['error']}"
        return
    for name, row in record["rows"].items():
        yield f"    {name:<28}{_time(row):>30}{_ratio(row):>9}   {_remarks(row)}".rstrip()
    if record["missing"]:
        yield f"    not installed: {', '.join(record['missing'])}"
    if record["target"]:
        yield f"    {_verdict(record['target'])}"


def summary(records: Iterable[Record]) -> str:
    """Return the number of met targets and the sum of the first calls' processor time, as text."""
    records = list(records)
    verdicts = [r["target"]["met"] for r in records if r.get("target") and r["target"]["met"] is not None]
    text = f"{sum(verdicts)} of {len(verdicts)} targets met"
    sums = {
        name: sum(r["rows"][name]["s"] for r in records if "s" in r.get("rows", {}).get(name, {}))
        for name in ("forward", "forward and backward")
    }
    if any(sums.values()):
        text += "; CPU time of all first calls: " + ", ".join(f"{name} {_number(s)} s" for name, s in sums.items())
    return text


def machine() -> dict[str, str]:
    """Describe the machine, the system and the libraries."""
    versions = {name: metadata.version(name) for name in ("torch", "numba", "numpy", "scipy")}
    found = {name: peers.version(name) for name in peers.PEERS}
    return {
        "processor": _processor(),
        "cores": str(cores()),
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "libraries": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "peers": ", ".join(f"{name} {version}" for name, version in found.items() if version) or "none",
    }


def write(path: Path, records: list[Record]) -> None:
    """Write all records as JSON or as a Markdown table, by the suffix of the path."""
    if path.suffix == ".json":
        text = json.dumps({"machine": machine(), "records": records}, indent=1, ensure_ascii=False) + "\n"
    else:
        text = "\n".join(_markdown(records)) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _markdown(records: list[Record]) -> Iterator[str]:
    yield "| work | ours, ms | others, ms (times ours) | target |"
    yield "|---|---|---|---|"
    for record in records:
        if "error" in record:
            yield f"| {record['what']} | failed: {record['error']} | | |"
            continue
        ours, *others = [*record["rows"].items()] or [("", {})]
        what = "; ".join(filter(None, [record["what"], _remarks(ours[1])]))
        ms = _number(ours[1]["ms"]) if "ms" in ours[1] else _time(ours[1])
        rest = "<br>".join(_markdown_row(name, row) for name, row in others)
        yield f"| {what} | {ms} | {rest} | {_verdict(record['target']) if record['target'] else ''} |"
    yield ""
    yield from (f"- {key}: {value}" for key, value in machine().items())


def _markdown_row(name: str, row: Mapping[str, Any]) -> str:
    ms = f" {_number(row['ms'])}" if "ms" in row else f" {_number(row['s'])} s" if "s" in row else ""
    ratio = f" ({row['ratio']:.2f})" if "ratio" in row else ""
    remarks = _remarks(row)
    return f"{name}{ms}{ratio}" + (f", {remarks}" if remarks else "")


def _time(row: Mapping[str, Any]) -> str:
    if "s" in row:
        return f"{_number(row['s'])} s"
    if "ms" not in row:
        return ""
    return f"{_number(row['ms'])} ({_number(row['low'])} to {_number(row['high'])})"


def _number(value: float) -> str:
    """Format a number with three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f}" if "ratio" in row else ""


def _remarks(row: Mapping[str, Any]) -> str:
    facts = [f"{key} {value}" for key, value in row.get("facts", {}).items()]
    return ", ".join(facts + ([f"differs in {row['differs']}"] if row.get("differs") else []))


def _verdict(target: Mapping[str, Any]) -> str:
    if "at_most" in target:
        outcome = "met" if target["met"] else "missed"
        return f"{outcome}: {_number(target['reached'])} of at most {target['at_most']:g} {target['unit']}"
    if target["met"] is None:
        return f"{target['wanted']:g} times: none to compare with is installed"
    outcome = "met" if target["met"] else "missed"
    return f"{outcome}: {target['reached']:.2f} of {target['wanted']:.3g} times as fast as {target['over']}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
