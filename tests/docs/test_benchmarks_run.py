"""The benchmarks run at their smallest sizes and find equal results; no timing is looked at."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import timing
from benchmarks.device import timings
from benchmarks.speed import __main__ as command
from benchmarks.speed import report
from benchmarks.speed.case import Case, Contender, EstimatedPeer, Target
from benchmarks.speed.cases import CASES

# Peers, where installed, warn as they like.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

COMPARISONS = [name for name, case in CASES.items() if isinstance(case, Case)]
OVERHEADS = [name for name in CASES if name.startswith("layer-")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COMPARISONS)
def test_results_are_equal(name: str) -> None:
    record = CASES[name].measure(1, quick=True)
    assert record["rows"]["structinf"]["ms"] > 0
    # Peers that may be inexact differ where they stop early.
    assert {n: row["differs"] for n, row in record["rows"].items() if row.get("wrong")} == {}


@pytest.mark.parametrize("name", OVERHEADS)
def test_overheads_are_measured(name: str) -> None:
    assert CASES[name].measure(1, quick=True)["target"]["unit"] == "µs"


def test_fresh_processes_are_measured() -> None:
    assert CASES["import"].measure(1, quick=True)["target"]["reached"] > 0


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "results.json", tmp_path / "results.md"]
    arguments = ["--case", "chain-viterbi", "--quick", "--repeats", "1"]
    assert command.main([*arguments, *(f"--out={path}" for path in paths)]) == 0
    printed = capsys.readouterr().out
    assert "plain torch loop" in printed
    written = json.loads(paths[0].read_text("utf-8"))
    assert [r["case"] for r in written["records"]] == ["chain-viterbi"]
    assert "torch" in written["machine"]["libraries"]
    assert paths[1].read_text("utf-8").count("plain torch loop") == 1


def test_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--case", "unheard-of"])
    assert "chain-loglik" in capsys.readouterr().err


def test_a_case_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(CASES, "broken", toy([]))  # unknown in the worker's process
    assert command.main(["--case", "broken", "--quick"]) == 1
    assert "failed: KeyError: 'broken'" in capsys.readouterr().out


# ----------------------------------------------------------------------------- what is made of results


def toy(contenders: list[Contender], **rest: Any) -> Case:
    return Case("toy", "a toy, n={n}", lambda modules, n: contenders, {"n": 2}, {"n": 1}, **rest)


def test_a_wrong_contender_is_named_and_not_timed() -> None:
    right = torch.zeros(3, 2)
    wrong = torch.tensor([[0.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]])
    others = [
        Contender("same", lambda: right),
        Contender("wrong", lambda: wrong),
        Contender("odd", lambda: right[:, 0]),
    ]
    record = toy([Contender("structinf", lambda: right), *others], target=Target(1e9)).measure(2)
    rows = record["rows"]
    assert rows["same"]["differs"] == ""
    assert rows["wrong"]["differs"].startswith("2 of 3 rows")
    assert rows["odd"]["differs"] == "shape (3,) instead of (3, 2)"
    assert "ms" not in rows["wrong"]
    assert record["target"]["over"] == "same"
    assert not record["target"]["met"]
    assert any("differs in 2 of 3 rows" in line for line in report.lines(record))


def test_a_peer_known_to_fail_is_timed_even_so() -> None:
    contenders = [
        Contender("structinf", lambda: torch.zeros(2)),
        Contender("known", lambda: torch.ones(2), exact=False),
    ]
    row = toy(contenders).measure(1)["rows"]["known"]
    assert row["differs"]
    assert row["ms"] > 0


def test_a_missing_peer_is_listed_and_may_have_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.speed.peers.PEERS", {"nowhere": "no_such_module"})
    contenders = [Contender("structinf", lambda: torch.zeros(2)), Contender("yardstick", lambda: None, read=None)]
    case = toy(contenders, peers=("nowhere",), target=Target(1e9), stand_in=EstimatedPeer("nowhere", "yardstick", 3.0))
    record = case.measure(1)
    assert record["missing"] == ["nowhere"]
    assert record["rows"]["nowhere, estimated"]["ratio"] == pytest.approx(3 * record["rows"]["yardstick"]["ratio"])
    assert record["target"]["over"] == "nowhere"


def test_a_target_with_nobody_to_compare_with_is_left_open() -> None:
    record = toy([Contender("structinf", lambda: torch.zeros(2))], target=Target(2)).measure(1)
    assert record["target"]["met"] is None
    assert report.summary([record]) == "0 of 0 targets met"


def test_functions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE", 0.0)  # one call a sample
    called: list[str] = []
    functions = {name: partial(called.append, name) for name in "ab"}
    samples = timing.alternate(functions, 3, budget=10.0)
    assert called == list("ab" + "ab" + "ba" + "ab")
    assert [len(s) for s in samples.values()] == [3, 3]


def test_a_slow_function_sits_out() -> None:
    samples = timing.alternate({"slow": lambda: sum(range(10**5)), "fast": lambda: None}, 4, budget=0.0)
    assert len(samples["slow"]) == 1


def test_statistics() -> None:
    assert timing.quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert timing.quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    assert timing.ratio([2.0, 6.0, 8.0], [1.0, 2.0, 2.0]) == 3.0


# ----------------------------------------------------------------------------- the GPU machine's table


def test_device_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert timings.main(["--quick", "--out", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert table == (tmp_path / "timings.txt").read_text("utf-8")
    records = json.loads((tmp_path / "timings.json").read_text("utf-8"))["records"]
    assert len(records) == len(timings.CASES)
    assert all(record["ms"]["cpu"] for record in records)
