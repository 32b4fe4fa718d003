"""Check that every public docstring has a summary, parameters, shapes, a reference and an example.

Pytest's ``--doctest-modules`` runs the examples.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")  # structinf.plot needs matplotlib

from shape_checker import SHAPE
from structinf.calls.resolution import ORACLES
from structinf.estimators.base import ESTIMATORS
from structinf.relaxation import RELAXATIONS

MODULES = ["", ".attention", ".dp", ".metrics", ".noise", ".plot", ".simplex", ".testing", ".transitions"]
REGISTRIES = (ORACLES, RELAXATIONS, ESTIMATORS)
PACKAGES = ("structinf", "structinf_oracles")  # the packages of built-in plugins

SECTION = re.compile(r"^([A-Z][a-z]+)\n-+\n(.*?)(?=^[A-Z][a-z]+\n-+\n|\Z)", re.MULTILINE | re.DOTALL)
NAMES = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: :|$)", re.MULTILINE)

# Results of another public call. The example of the call shows the result.
SHOWN_BY = {
    "structinf.Barycenter": "structinf.soft_dtw_barycenter",
    "structinf.FunctionOracle": "structinf.oracle_from_function",
    "structinf.ModelOracle": "structinf.from_math_opt",
    "structinf.Parallel": "structinf.parallel",
    "structinf.PoolReport": "structinf.pooled",
    "structinf.TopK": "structinf.topk",
    "structinf.DistinctSamples": "structinf.Gibbs",
    "structinf.Quantized": "structinf.VectorQuantizer",
    "structinf.SequenceSample": "structinf.stochastic_beam",
    "structinf.Sequences": "structinf.decode_beam",
    "structinf.Solution": "structinf.infer",
    "structinf.Support": "structinf.enumerate_support",
    "structinf.dp.DAG": "structinf.dp.path_graph",
    "structinf.dp.Hypergraph": "structinf.dp.path_graph",
    "structinf.dp.SmoothMax": "structinf.dp.DynamicProgram",
    "structinf.transitions.BitsState": "structinf.transitions.BitsInOrder",
    "structinf.transitions.ParserState": "structinf.transitions.ArcHybrid",
    "structinf.transitions.RankingState": "structinf.transitions.PlackettLuce",
    "structinf.transitions.ShiftReduceState": "structinf.transitions.ShiftReduce",
    "structinf.metrics.AttachmentScores": "structinf.metrics.attachment_scores",
    "structinf.metrics.F1Score": "structinf.metrics.span_f1",
    "structinf.metrics.MatchingAccuracy": "structinf.metrics.matching_accuracy",
    "structinf.testing.Check": "structinf.testing.list_oracle_checks",
    "structinf.testing.CheckReport": "structinf.testing.check_oracle",
    "structinf.testing.CheckResult": "structinf.testing.check_oracle",
}

# Objects without an example, with the reason.
WITHOUT_EXAMPLE = {
    "structinf.estimators.FunctionValues": "made by `expect`, for baselines",
    **dict.fromkeys(
        ("structinf.register_estimator", "structinf.register_oracle", "structinf.register_relaxation"),
        "what it registers would be there in the tests that run after it; docs/ has examples",
    ),
}

# Parameters without a description, with the reason.
UNDOCUMENTED = {
    "validate_args": "torch's, of every torch.distributions.Distribution",
}

# Objects that implement a paper, besides registered objects and maps to the simplex.
FROM_PAPERS = [
    "structinf.ConeLoss",
    "structinf.ContrastiveLoss",
    "structinf.FenchelYoungLoss",
    "structinf.GaussianSparsemax",
    "structinf.Gibbs",
    "structinf.GumbelSparsemax",
    "structinf.HardConcrete",
    "structinf.ImitationLoss",
    "structinf.PerturbationGradientLoss",
    "structinf.RankingLoss",
    "structinf.SPOPlusLoss",
    "structinf.StructuredMultiheadAttention",
    "structinf.VectorQuantizer",
    "structinf.dp.DynamicProgram",
    "structinf.dp.HypergraphProgram",
    "structinf.expect",
    "structinf.noise.SumOfGamma",
    "structinf.round_straight_through",
    "structinf.simplex.Entropy",
    "structinf.simplex.simplex_loss",
    "structinf.soft_dtw",
    "structinf.soft_dtw_barycenter",
    "structinf.soft_dtw_divergence",
    "structinf.soft_rank",
    "structinf.soft_sort",
    "structinf.testing.nearest_point",
]

# Algorithms without a reference, with the reason.
WITHOUT_SOURCE = {
    "oracle bits": "each part is on its own",
    "oracle grid_path": "a function that says which of two oracles it makes",
}


def listed() -> dict[str, Any]:
    """Return the objects with an entry in the reference."""
    pages = (Path(__file__).parent.parent.parent / "docs" / "reference").glob("*.md")
    names = [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)]
    return {name: pkgutil.resolve_name(name) for name in sorted(names)}


def collected() -> dict[str, Any]:
    """Return all public objects, each once, under its first name."""
    found: dict[str, Any] = {}
    for module in (importlib.import_module(f"structinf{name}") for name in MODULES):
        found.update({f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__})
    for registry in REGISTRIES:
        own = [
            point
            for point in entry_points(group=registry.entry_point_group)
            if point.value.partition(".")[0] in PACKAGES
        ]
        found.update({f"{registry.kind} {point.name}": point.load() for point in own})
    found.update(REFERENCE)
    once: dict[int, str] = {}
    for name, item in found.items():
        once.setdefault(id(item), name)
    return {name: found[name] for name in once.values()}


REFERENCE = listed()
PUBLIC = collected()
CODE = {n: o for n, o in PUBLIC.items() if inspect.isclass(o) or inspect.isfunction(o)}
NORMAL = {n: o for n, o in CODE.items() if not (inspect.isclass(o) and issubclass(o, Exception))}
FUNCTIONS = {n: o for n, o in CODE.items() if inspect.isfunction(o)}


def doc(item: Any) -> str:
    """Return the object's own docstring, without an inherited docstring."""
    own = item.__dict__.get("__doc__") if inspect.isclass(item) else item.__doc__
    return inspect.cleandoc(own or "")


def sections(item: Any) -> dict[str, str]:
    return dict(SECTION.findall(doc(item)))


def lineage(item: Any) -> list[Any]:
    """Return a class and its bases. A docstring need not repeat inherited parameters."""
    return [c for c in item.__mro__ if c is not object] if inspect.isclass(item) else [item]


def documented(item: Any) -> set[str]:
    """Return the names of the parameters and attributes described in docstring sections."""
    texts = [sections(c).get(s, "") for c in lineage(item) for s in ("Parameters", "Attributes")]
    return {name.strip(" *") for text in texts for names in NAMES.findall(text) for name in names.split(",")}


@pytest.mark.parametrize("name", PUBLIC)
def test_it_has_a_summary(name: str) -> None:
    item = PUBLIC[name]
    if name in CODE or isinstance(item, types.ModuleType):
        assert doc(item).split("\n\n")[0].strip()


@pytest.mark.parametrize("name", CODE)
def test_it_has_a_place_in_the_reference(name: str) -> None:
    """The reference has an entry for the object, or for a module that exports it. Registered functions are exempt:
    their classes have entries.
    """
    item = CODE[name]
    exported = [o for o in REFERENCE.values() if isinstance(o, types.ModuleType) and item in vars(o).values()]
    assert exported or item in REFERENCE.values() or (inspect.isfunction(item) and not name.startswith("structinf"))


@pytest.mark.parametrize("name", NORMAL)
def test_each_parameter_has_a_line(name: str) -> None:
    item = NORMAL[name]
    if inspect.isabstract(item) or getattr(item, "_is_protocol", False):
        return  # users do not call abstract classes and protocols
    own = [p for p in inspect.signature(item).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    said = documented(item)
    missing = {p.name for p in own} - said - UNDOCUMENTED.keys()
    assert not missing or "options" in said or re.search(r"\b[Aa]s (?:for )?:func:", doc(item)), missing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_the_shape_that_it_returns(name: str) -> None:
    """The shape is in a "Returns" section, or in the annotation (structinf.shapes)."""
    returned = str(FUNCTIONS[name].__annotations__.get("return", ""))
    if re.search(r"\b(?:Tensor|Parts)\b", returned):
        assert SHAPE.match(returned) or "Returns" in sections(FUNCTIONS[name]), returned


@pytest.mark.parametrize("name", NORMAL)
def test_it_has_an_example(name: str) -> None:
    item = NORMAL[name]
    if not inspect.isabstract(item) and name not in WITHOUT_EXAMPLE:
        assert ">>> " in doc(PUBLIC[SHOWN_BY.get(name, name)])


def algorithms() -> list[str]:
    """Return the names of objects that need a reference."""
    registered = [n for n in CODE if n.partition(" ")[0] in {registry.kind for registry in REGISTRIES}]
    maps = [n for n in FUNCTIONS if n.startswith("structinf.simplex.") and not n.endswith("_loss")]
    return [n for n in [*registered, *maps, *FROM_PAPERS] if n not in WITHOUT_SOURCE]


@pytest.mark.parametrize("name", algorithms())
def test_an_algorithm_names_its_source(name: str) -> None:
    assert "References" in sections(CODE[name])


def test_exemptions_are_needed() -> None:
    assert not [name for name in [*SHOWN_BY, *WITHOUT_EXAMPLE] if ">>> " in doc(PUBLIC[name])]
    assert not [name for name in WITHOUT_SOURCE if "References" in sections(CODE[name])]
