"""The command line: what it prints, and what it answers to mistakes."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

import oracle_examples
import structinf as si
from structinf.calls import resolution
from structinf.command_line.main import main
from structinf.estimators.base import ESTIMATORS
from structinf.relaxations.map import MAP
from toy_oracles import Knapsack

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Crowded(si.Oracle):
    """Chooses the parts above 0, and all parts where the batch has more than one instance."""

    event_ndim = 1

    def argmax(self, theta):
        return torch.ones_like(theta) if len(theta) > 1 else (theta > 0).to(theta)


@pytest.fixture
def registered(monkeypatch):
    """Registers an oracle for one test."""
    return lambda name, factory: monkeypatch.setitem(resolution.ORACLES._registered, name, factory)


@pytest.fixture
def declared(monkeypatch):
    """Declares an entry point for one test."""

    def declare(registry, name, value):
        known = {**registry._entry_points, name: [EntryPoint(name, value, registry.entry_point_group)]}
        monkeypatch.setitem(registry.__dict__, "_entry_points", known)

    return declare


def run(capsys, *argv: str) -> tuple[int, str, str]:
    """Exit code, and what stood on both streams."""
    try:
        code = main(argv)
    except SystemExit as leave:
        code = leave.code
    streams = capsys.readouterr()
    return code, streams.out, streams.err


# ----------------------------------------------------------------------------- the program


@pytest.mark.parametrize("command", [["structinf"], [sys.executable, "-m", "structinf"]])
def test_version_from_the_shell(command, monkeypatch):
    if len(command) == 1:
        command = [f"{sysconfig.get_path('scripts')}/structinf"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"structinf {si.__version__}\n"


@pytest.mark.parametrize("argv", [(), ("demo",), ("check",), ("list", "--more"), ("demo", "parse"), ("dance",)])
def test_a_wrong_call_is_told_the_usage(capsys, argv):
    code, _, err = run(capsys, *argv)
    assert code == 2
    assert err.startswith("usage: structinf")


@pytest.mark.parametrize(
    "argv", [(), ("list",), ("check",), ("demo",), *(("demo", d) for d in ("sort", "parse", "align"))]
)
def test_help(capsys, argv):
    code, out, _ = run(capsys, *argv, "--help")
    assert code == 0
    assert out.startswith("usage: structinf")


# ----------------------------------------------------------------------------- list


KINDS = {
    "Relaxations": (si.list_relaxations, si.get_relaxation),
    "Estimators of expect": (si.list_estimators, si.get_estimator),
}


def answers(out: str, title: str) -> dict[str, dict[str, str]]:
    """Of the table under ``title``: for each oracle, the cell of each column, and of each name that a column merges."""
    _, _, below = out.partition(f"{title}\n\n")
    paragraphs = below.split("\n\n")
    blocks = list(itertools.takewhile(lambda paragraph: paragraph.startswith("oracle "), paragraphs))
    legend = paragraphs[len(blocks)]
    merged = dict(re.findall(r"^(\S+ \+\d+): (.*(?:\n  .*)*)", legend, re.MULTILINE))
    found: dict[str, dict[str, str]] = {}
    for block in blocks:  # a table of many columns is printed in several blocks
        titles, _, *rows = (re.split(" {2,}", line) for line in block.splitlines())
        names = [
            re.split(r",\s+", merged.pop(t, t)) if "+" in t else [t] for t in (" ".join(t.split()) for t in titles)
        ]
        for cells in rows:
            row = {name: c for each, c in zip(names, cells, strict=True) for name in each}
            found.setdefault(cells[0], {}).update(row)
    assert not merged
    return {oracle: {name: c for name, c in row.items() if name != "oracle"} for oracle, row in found.items()}


def reason(out: str, kind: str, name: str, oracle: str) -> str | None:
    """What stands under "Why not" for one relaxation or estimator of one oracle."""
    _, _, below = out.partition("Why not\n")
    said, _, _ = below.partition("\n\n")
    found = []
    for entry in re.split(r"\n  (?=\S)", said):
        subject, _, why = " ".join(entry.split()).partition(": ")
        ways, _, oracles = subject.rpartition(" of ")
        relaxations, _, estimators = re.sub("estimators? ", "|", ways).partition("|")
        ways = relaxations if kind == "Relaxations" else estimators
        if name in re.split(", ?", ways) and oracle in oracles.split(", "):
            found.append(why.removeprefix("each "))
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("kind", KINDS)
def test_list_has_every_combination_and_its_reason(capsys, kind):
    code, out, _ = run(capsys, "list")
    assert code == 0
    table, (list_names, get) = answers(out, kind), KINDS[kind]
    fewest_options_last = sorted(oracle_examples.EXAMPLES, key=lambda e: -len(e.options))
    for name, options in {e.name: e.options for e in fewest_options_last}.items():
        oracle = si.get_oracle(name, **options)
        cells = {title: cell for title, cell in table[name].items() if title not in ("oracle", "abilities")}
        missing = {key: get(key).unsupported_reason(oracle) for key in list_names()}
        assert cells == {key: "no" if why else "yes" for key, why in missing.items()}
        for key, why in missing.items():
            assert reason(out, kind, key, name) == (why and " ".join(why.removeprefix(f"{name} ").split()))
    assert "exact marginals of assignments are #P-complete" in " ".join(out.split())


def test_list_of_some_oracles(capsys):
    code, out, _ = run(capsys, "list", "chain", "assignment")
    assert code == 0
    assert set(answers(out, "Relaxations")) == {"assignment", "chain"}
    assert reason(out, "Relaxations", "marginals", "assignment")
    assert "spanning_tree" not in out
    code, _, err = run(capsys, "list", "chian")
    assert code == 2
    assert "did you mean 'chain'" in err


def test_list_fits_a_terminal(capsys, registered, monkeypatch):
    @dataclass(frozen=True)
    class Picky(MAP):
        good: str = ""

        def unsupported_reason(self, oracle):
            return None if oracle.label() == self.good else f"is not {self.good}"

    for name in si.list_oracles():
        monkeypatch.setitem(resolution.RELAXATIONS._registered, f"only_for_{name}", partial(Picky, good=name))
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 120
    headers = [line for line in out.splitlines() if line.startswith("oracle ")]
    assert len(headers) > 3
    merged = " ".join(re.findall(r"^\S+ \+\d+: .*(?:\n  .*)*", out, re.MULTILINE))  # with relaxations of equal answers
    for name in si.list_oracles():
        in_header = sum(f"only_for_{name} " in f"{line} " for line in headers)
        assert in_header + (re.search(rf"\bonly_for_{name}\b", merged) is not None) == 1
        assert sum(line.startswith(f"{name} ") for line in out.splitlines()) == len(headers)


def test_the_docs_show_what_list_prints(capsys):
    _, out, _ = run(capsys, "list")
    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "command-line.md").read_text("utf-8")
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    table, imle, others = re.split(r"^(?=imle|map)", shown, flags=re.MULTILINE)
    listed, reason = others.split("Why not\n")
    # The page shows fewer rows, and shorter lines.
    rows = {" ".join(row.split()) for row in out.splitlines()}
    assert not {" ".join(row.split()) for row in table.splitlines() if "---" not in row} - rows
    assert all(" ".join(part.split()) in " ".join(out.split()) for part in (imle, listed, reason))


def test_list_shows_abilities(capsys):
    _, out, _ = run(capsys, "list")
    abilities = {name: cells["abilities"] for name, cells in answers(out, "Relaxations").items()}
    assert abilities["categorical"] == "G S K . P E"
    assert abilities["assignment"] == ". . K T . E"
    assert "G log-partition and marginals" in out


@pytest.mark.parametrize("kind", KINDS)
def test_an_oracle_that_needs_options_is_judged_by_its_class(capsys, registered, kind):
    registered("toy_knapsack", Knapsack)
    code, out, _ = run(capsys, "list")
    assert code == 0
    (list_names, get), cells = KINDS[kind], answers(out, kind)["toy_knapsack"]
    for name in list_names():
        assert cells[name] == ("no" if get(name).unsupported_reason(Knapsack(capacity=3)) else "yes")
    assert "toy_knapsack: needs capacity" in out


def test_a_broken_oracle_is_a_line_with_its_error(capsys, declared):
    declared(resolution.ORACLES, "broken", "no_such_package.module:Oracle")
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert "broken" not in answers(out, "Relaxations")
    _, _, said = " ".join(out.split()).partition("Plugins that cannot be loaded ")
    assert said.startswith("broken: oracle 'broken' of no_such_package.module:Oracle")
    assert "No module named 'no_such_package'" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_relaxation_or_estimator_is_a_line_with_its_error(capsys, declared, kind):
    registry = {"Relaxations": resolution.RELAXATIONS, "Estimators of expect": ESTIMATORS}[kind]
    declared(registry, "broken", "json:NoSuchClass")
    code, out, _ = run(capsys, "list")
    assert code == 0
    _, _, said = out.partition("Plugins that cannot be loaded")
    assert f"broken: {registry.kind} 'broken' of json:NoSuchClass" in said
    assert set(answers(out, kind)["categorical"]) - {"oracle", "abilities"} == set(KINDS[kind][0]()) - {"broken"}


def test_a_constructor_that_fails_hides_no_other_row(capsys, registered):
    def explode() -> si.Oracle:
        raise RuntimeError("out of order")

    registered("exploding", explode)
    _, out, _ = run(capsys, "list")
    _, _, said = out.partition("Plugins that cannot be loaded")
    assert "exploding: oracle 'exploding' cannot be constructed: RuntimeError('out of order')" in " ".join(said.split())
    assert "chain" in answers(out, "Relaxations")


# ----------------------------------------------------------------------------- check


def test_check_prints_every_check(capsys):
    code, out, _ = run(capsys, "check", "categorical", "--event-shape", "3")
    assert code == 0
    assert out.splitlines()[0] == "Categorical(), scores of shape (3,)"
    marks = {words[1]: words[0] for words in map(str.split, out.splitlines()) if len(words) > 1}
    assert marks["optimal"] == "ok"
    assert "lengths" not in marks
    (other,) = [line for line in out.splitlines() if line.startswith("-")]
    assert re.match(r"-       \d+ checks do not apply: .*\blengths, .* \(option --verbose: the reasons\)$", other)
    assert all(check.name in marks or f" {check.name}" in other for check in si.testing.list_oracle_checks())
    assert out.endswith(" 0 failed\n")


def test_check_prints_the_reason_why_a_check_does_not_apply(capsys):
    code, out, _ = run(capsys, "check", "categorical", "--event-shape", "3", "--verbose")
    assert code == 0
    marks = {words[1]: words[0] for words in map(str.split, out.splitlines()) if len(words) > 1}
    assert {check.name for check in si.testing.list_oracle_checks()} <= marks.keys()
    assert re.search(r"^-       lengths +no lengths are bound$", out, re.MULTILINE)
    assert "checks do not apply" not in out


def test_check_says_what_fails(capsys, registered):
    registered("crowded", Crowded)
    code, out, _ = run(capsys, "check", "crowded", "--event-shape", "2")
    assert code == 1
    assert "ok      form" in out
    _, failed, rest = out.partition("FAILED  batch_independence")
    assert failed
    assert "theta = torch.tensor(" in rest.split("\n-")[0]
    assert not out.endswith(" 0 failed\n")


class Stumbling(si.Oracle):
    """Never answers."""

    event_ndim = 1

    def argmax(self, theta):
        raise KeyError(f"a batch of {len(theta)}")


def test_check_prints_the_reason_of_several_failures_once(capsys):
    code, out, _ = run(capsys, "check", "test_command_line:Stumbling")
    assert code == 1
    assert out.startswith("Stumbling(), scores of shape (4,)")
    line = inspect.unwrap(Stumbling.argmax).__code__.co_firstlineno + 1
    assert out.count(f"KeyError was raised in argmax, line {line} of {__file__}: ") == 1
    assert out.count("for the same reason as form") == out.count("FAILED") - 1 > 10
    assert out.endswith("failed, for 1 reason\n")


def test_check_finds_lengths_of_two_dimensions(capsys):
    code, out, _ = run(capsys, "check", "assignment", "--event-shape", "2,2")
    assert code == 0, out
    assert "ok      lengths" in out
    assert "ok      padding" in out


def test_check_takes_options_and_a_class_by_its_module(capsys):
    code, out, _ = run(capsys, "check", "toy_oracles:Knapsack", "-o", "capacity=3", "--event-shape", "3")
    assert code == 0, out
    assert out.startswith("Knapsack(capacity=3), scores of shape (3,)")


def test_check_hints_at_the_classes_of_a_local_file(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_block.py").write_text("class Block:\n    pass\n")
    for name in ("my_block", "my_block.py", "./my_block.py"):
        code, _, errors = run(capsys, "check", name)
        assert code != 0
        assert "A file of this name exists: write my_block:Block" in errors
    assert "A file of this name exists: write my_block:Block" in run(capsys, "check", "my_block.Block")[2]
    assert "A file" not in run(capsys, "check", "other_block")[2]


@pytest.mark.parametrize(("name", "starts"), [("map", "MAP() of Assignment("), ("imle", "IMLE(")])
def test_check_of_a_relaxation(capsys, name, starts):
    code, out, _ = run(capsys, "check", "assignment", "--relaxation", name, "--event-shape", "2,1")
    assert code == 0, out
    assert out.startswith(starts)
    draws = si.get_relaxation(name).is_stochastic
    assert ("ok      own_generator" in out) == draws
    assert ("ok      batch_independence" in out) != draws


@pytest.mark.parametrize(
    ("name", "given", "shape"),
    [
        ("arborescence", [], "(4, 4)"),
        ("chain", [], "((4, 4), (4, 4))"),
        ("chain", ["--event-shape", "3,2", "--event-shape", "2x2"], "((3, 2), (2, 2))"),
        ("chain", ["--event-shape", "3,2,2"], "(3, 2, 2)"),
    ],
)
def test_shapes(capsys, monkeypatch, name, given, shape):
    monkeypatch.setattr(si.testing, "check_oracle", lambda *_, **__: si.testing.CheckReport("", ()))
    code, out, _ = run(capsys, "check", name, *given)
    assert code == 0
    assert out.splitlines()[0].endswith(f"scores of shape {shape}")


@dataclass(frozen=True)
class Pairs(si.Oracle):
    """An oracle that does not take a size of 4."""

    event_ndim = 1

    def validate(self, theta):
        if theta.shape[1] != 2:
            raise si.InvalidInputError(f"theta must have two parts, got {theta.shape[1]}")

    def argmax(self, theta):
        raise AssertionError


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["check", "chian"], "did you mean 'chain' or"),
        (["check", "chain", "-o", "colour=red"], "has no option 'colour'"),
        (["check", "assignment", "--relaxation", "marginals"], "#P-complete"),
        (["check", "toy_oracles:Knapsack"], "toy_oracles:Knapsack has options without a default: pass -o capacity=..."),
        (["check", "knapsack"], "knapsack needs weights, as an option or with the scores as instance data"),
        (["check", "toy_oracles:Knapsack", "-o", "capacty=3"], "pass -o capacity=...; it has no option 'capacty'"),
        (
            ["check", "knapsack", "-o", "weights=[1,2]"],
            "knapsack needs capacity, as an option or with the scores as instance data",
        ),
        (["check", "toy_oracles:Rucksack"], "Rucksack"),
        (["check", "no_such_module:Oracle"], "no_such_module"),
        (["check", "collections:OrderedDict"], "must construct an Oracle"),
        (
            ["check", "test_command_line:Pairs"],
            "--event-shape must be given, because the oracle does not accept the default (4,)",
        ),
        (["check", "chain", "--event-shape", "4,b"], "sizes separated by commas"),
        (["check", "chain", "-o", "colour"], "OPTION=VALUE"),
        (["demo", "sort", "--epochs", "0"], "must be an integer of at least 1"),
        (["demo", "sort", "--methods", "sparsmap-loss"], "no method is called 'sparsmap-loss'; did you mean"),
        (["demo", "align", "--temperature", "-1"], "temperature must be a finite number of at least 0"),
        (["demo", "align", "--temperature", "nan"], "temperature must be a finite number of at least 0"),
        (["demo", "align", "--temperature", "warm"], "invalid float value: 'warm'"),
        (["demo", "parse", "--treebank", "no_such_folder"], "the folder no_such_folder does not exist"),
    ],
)
def test_mistakes_get_a_sentence(capsys, argv, said):
    code, _, err = run(capsys, *argv)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


# ----------------------------------------------------------------------------- extras


@pytest.mark.parametrize(
    ("demo", "module", "package"),
    [
        ("sort", "matplotlib", "matplotlib"),
        ("sort", "sklearn", "scikit-learn"),
        ("sort", "tqdm", "tqdm"),
        ("align", "matplotlib", "matplotlib"),
        ("align", "pyts", "pyts"),
        ("parse", "conllu", "conllu"),
        ("parse", "matplotlib", "matplotlib"),
    ],
)
def test_a_missing_extra_is_named_with_the_command(capsys, monkeypatch, tmp_path, demo, module, package):
    import structinf.demos

    for name in [n for n in sys.modules if n.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    demos = ("align", "sort", "parse")
    for parent, child in [(si, "plot"), *((structinf.demos, name) for name in demos)]:
        monkeypatch.delitem(sys.modules, f"{parent.__name__}.{child}", raising=False)
        monkeypatch.delattr(parent, child, raising=False)
    options = ["--treebank", str(tmp_path)] if demo == "parse" else []
    code, _, err = run(capsys, "demo", demo, *options)
    assert code == 2
    assert err == f"structinf: this needs {package}, which is not installed; run: pip install 'structinf[demo]'\n"
