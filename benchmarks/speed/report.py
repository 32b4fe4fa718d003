"""Records as text, Markdown and JSON, with a description of the machine."""

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
    """A case as plain text."""
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
    """How many targets were met."""
    verdicts = [r["target"]["met"] for r in records if r.get("target") and r["target"]["met"] is not None]
    return f"{sum(verdicts)} of {len(verdicts)} targets met"


def machine() -> dict[str, str]:
    """What the figures depend on."""
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
    """All records, as JSON or as a Markdown table according to the path's suffix."""
    if path.suffix == ".json":
        text = json.dumps({"machine": machine(), "records": records}, indent=1, ensure_ascii=False) + "\n"
    else:
        text = "\n".join(_markdown(records)) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _markdown(records: list[Record]) -> Iterator[str]:
    yield "| work | median (quartiles), ms | times ours | target |"
    yield "|---|---|---|---|"
    for record in records:
        if "error" in record:
            yield f"| {record['what']} | failed: {record['error']} | | |"
            continue
        verdict = _verdict(record["target"]) if record["target"] else ""
        if not record["rows"]:
            yield f"| {record['what']} | | | {verdict} |"
        for i, (name, row) in enumerate(record["rows"].items()):
            what = f"**{record['what']}**<br>" if i == 0 else ""
            remarks = _remarks(row)
            label = f"{what}{name}" + (f" ({remarks})" if remarks else "")
            yield f"| {label} | {_time(row)} | {_ratio(row)} | {verdict if i == 0 else ''} |"
    yield ""
    yield from (f"- {key}: {value}" for key, value in machine().items())


def _time(row: Mapping[str, Any]) -> str:
    return f"{row['ms']:.3g} ({row['low']:.3g} to {row['high']:.3g})" if "ms" in row else ""


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f}" if "ratio" in row else ""


def _remarks(row: Mapping[str, Any]) -> str:
    facts = [f"{key} {value}" for key, value in row.get("facts", {}).items()]
    return ", ".join(facts + ([f"differs in {row['differs']}"] if row.get("differs") else []))


def _verdict(target: Mapping[str, Any]) -> str:
    if "at_most" in target:
        outcome = "met" if target["met"] else "missed"
        return f"{outcome}: {target['reached']:.3g} {target['unit']} of at most {target['at_most']:g} {target['unit']}"
    if target["met"] is None:
        return f"{target['wanted']:g} times: none to compare with is installed"
    outcome = "met" if target["met"] else "missed"
    return f"{outcome}: {target['reached']:.2f} of {target['wanted']:g} times as fast as {target['over']}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
