"""Options are numbers of their kind: True is no number, 1 is no flag, and a complex number is no real one.

Generated from the signatures of everything registered or public, by their annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import oracle_examples
import structinf as si
import structinf.attention
import structinf.noise
import structinf.regularizers
import structinf.simplex
from structinf.estimators.base import ESTIMATORS
from structinf.relaxation import RELAXATIONS

THETA, MATRIX, Y = torch.randn(2, 3), torch.randn(3, 3), torch.eye(3)[:2]

WRONG = {
    "float": (True, False, 1j, "1", [1.0], torch.tensor(1.0)),
    "int": (True, False, 1.5, 1j, "1", [1], torch.tensor([1, 2])),
    "bool": (1, 0, 1.0, "True", None, torch.tensor(True)),
}
KINDS = {
    **{f"{kind}{none}": kind for kind in WRONG for none in ("", " | None")},
    **{f"Optional[{kind}]": kind for kind in WRONG},
}


def annotated(function: Callable[..., Any]) -> Iterator[tuple[str, str, bool]]:
    """Return the names, kinds, and whether None is accepted, of the parameters of ``function``."""
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        if text in KINDS:
            yield name, KINDS[text], "None" in text


def constructors() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Return labels, functions of options, and the required options."""
    for registry in (RELAXATIONS, ESTIMATORS):
        for name in registry.names():
            required = {"k": 2} if name in ("topk_sparsemax", "sum_and_sample") else {}
            yield name, type(registry.get(name, **required)), required
    for example in oracle_examples.one_for_each(type, lambda _: True):
        yield example.name, type(example.oracle()), dict(example.options)
    for module in (structinf.noise, structinf.regularizers):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found) and not inspect.isabstract(found):
                yield name, found, {}
    theta, series = torch.randn(3, 3), torch.randn(4, 2)
    yield "sinkhorn", lambda **o: si.sinkhorn(theta, **o), {}
    yield "soft_rank", lambda **o: si.soft_rank(theta, **o), {}
    yield "soft_sort", lambda **o: si.soft_sort(theta, **o), {}
    yield "soft_dtw", lambda **o: si.soft_dtw(theta, **o), {}
    yield "soft_dtw_between", lambda **o: si.soft_dtw_between(series, series, **o), {}
    yield "soft_dtw_divergence", lambda **o: si.soft_dtw_divergence(series, series, **o), {}
    yield "soft_dtw_barycenter", lambda **o: si.soft_dtw_barycenter([series, series], **o), {}
    yield "log_partition", lambda **o: si.log_partition(theta[0], "categorical", **o), {}
    yield "entropy", lambda **o: si.entropy(theta[0], "categorical", **o), {}
    yield "log_prob", lambda **o: si.log_prob(theta[0], torch.tensor(0), "categorical", **o), {}
    yield "sample", lambda **o: si.sample(theta[0], "categorical", **{"n": 2, **o}), {}
    yield "topk", lambda **o: si.topk(theta[0], "categorical", **{"k": 2, **o}), {}
    yield "enumerate_support", lambda **o: si.enumerate_support(theta, "dtw", **o), {}
    yield "Gibbs", lambda **o: si.Gibbs(theta[0], "categorical", **o), {}
    yield "SparseDistribution", lambda **o: si.SparseDistribution(Y, torch.tensor([0.5, 0.5]), **o), {}
    for name in ("GaussianSparsemax", "GumbelSparsemax", "HardConcrete"):
        yield name, lambda name=name, **o: getattr(si, name)(theta[0], **o), {}
    yield "VectorQuantizer", si.VectorQuantizer, {"codes": 4, "dim": 2}
    yield "StructuredAttention", si.StructuredAttention, {}
    yield "StructuredMultiheadAttention", si.StructuredMultiheadAttention, {"embed_dim": 4, "num_heads": 2}


SIGNATURES = {
    "sinkhorn": si.sinkhorn, "soft_rank": si.soft_rank, "soft_sort": si.soft_sort, "soft_dtw": si.soft_dtw,
    "soft_dtw_between": si.soft_dtw_between, "soft_dtw_divergence": si.soft_dtw_divergence,
    "soft_dtw_barycenter": si.soft_dtw_barycenter, "log_partition": si.log_partition, "entropy": si.entropy,
    "log_prob": si.log_prob, "sample": si.sample, "topk": si.topk, "enumerate_support": si.enumerate_support,
    "Gibbs": si.Gibbs, "SparseDistribution": si.SparseDistribution, "GaussianSparsemax": si.GaussianSparsemax,
    "GumbelSparsemax": si.GumbelSparsemax, "HardConcrete": si.HardConcrete,
}  # fmt: skip


def options() -> Iterator[Any]:
    for label, function, required in constructors():
        for name, kind, optional in annotated(SIGNATURES.get(label, function)):
            for value in WRONG[kind]:
                if not (optional and value is None):
                    yield pytest.param(function, required, name, value, id=f"{label}-{name}-{value!r}")


@pytest.mark.parametrize(("function", "required", "name", "value"), list(options()))
def test_wrong_kinds_are_refused(function, required, name, value):
    with pytest.raises((TypeError, ValueError)) as error:
        function(**{**required, name: value})
    assert name.rstrip("_") in str(error.value)


def test_the_signatures_are_found():
    assert len(list(options())) > 400


# ----------------------------------------------------------------------------- complex tensors


def _complex(t: torch.Tensor) -> torch.Tensor:
    return torch.complex(t, torch.ones_like(t))


LOSSES = {
    "fenchel_young": lambda y: si.FenchelYoungLoss("categorical", "marginals")(THETA, y),
    "fenchel_young_cost": lambda c: si.FenchelYoungLoss("categorical", "map", cost=c)(THETA, Y),
    "fenchel_young_cost_function": lambda c: si.FenchelYoungLoss("categorical", "map", cost=lambda _: c)(THETA, Y),
    "relaxed": lambda y: si.RelaxedLoss("categorical", "marginals")(THETA, y),
    "relaxed_distance": lambda y: si.RelaxedLoss("categorical", "marginals", distance=lambda *_: y[:, 0])(THETA, Y),
    "spo_plus": lambda y: si.SPOPlusLoss("categorical")(THETA, y),
    "perturbation_gradient": lambda y: si.PerturbationGradientLoss("categorical")(THETA, y),
    "ranking": lambda y: si.RankingLoss("categorical")(THETA, y),
    "ranking_pool": lambda y: si.RankingLoss("categorical", pool=y),
    "contrastive": lambda y: si.ContrastiveLoss("categorical")(THETA, y),
    "cone": lambda y: si.ConeLoss("categorical")(THETA, y),
    "optimality_gap": lambda y: si.optimality_gap(y, THETA, "categorical"),
    "regret": lambda y: si.regret(THETA, y, "categorical"),
    "log_prob": lambda y: si.log_prob(THETA, y, "categorical"),
    "gibbs_log_prob": lambda y: si.Gibbs(THETA, "categorical").log_prob(y),
    "decode": lambda y: si.decode(y, "categorical"),
    "encode": lambda y: si.encode(y, THETA, "categorical"),
    "rows": lambda y: si.sinkhorn(MATRIX, y[0], torch.ones(3)),
    "columns": lambda y: si.sinkhorn(MATRIX, torch.ones(3), y[0]),
    "total": lambda y: si.sinkhorn(MATRIX, slack=True, total=y[0, 0]),
    "total_number": lambda y: si.sinkhorn(MATRIX, slack=True, total=y[0, 0].item()),
    "lengths": lambda y: si.relax(MATRIX, "assignment", "map", lengths=y[0, :2]),
    "bound_lengths": lambda y: si.get_oracle("assignment").bind(lengths=y[:, :2]),
    "simplex_loss": lambda y: structinf.simplex.entmax_loss(THETA, y),
    "simplex_cost": lambda y: structinf.simplex.entmax_loss(MATRIX, torch.tensor([0, 1, 2]), cost=_complex(MATRIX)),
    "simplex_weight": lambda y: structinf.simplex.entmax_loss(THETA, torch.tensor([0, 1]), weight=y[0]),
    "scores": lambda y: si.relax(y, "categorical", "map"),
    "scale": lambda y: si.GaussianSparsemax(THETA, y[:, 0]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_complex_tensors_are_refused(name):
    with pytest.raises((TypeError, si.InvalidInputError), match=r"real|floating point|integers|complex"):
        LOSSES[name](_complex(Y))


def test_flags_are_no_margins():
    with pytest.raises(TypeError, match="rows must be numbers"):
        si.sinkhorn(MATRIX, torch.ones(3).bool(), torch.ones(3))
    with pytest.raises(si.InvalidInputError, match="total must be a number"):
        si.sinkhorn(MATRIX, slack=True, total=True)
    with pytest.raises(TypeError, match="total must be numbers"):
        si.sinkhorn(MATRIX, slack=True, total=torch.tensor(True))
    with pytest.raises(TypeError, match="rows must be real"):
        si.sinkhorn(MATRIX, [1j, 1.0, 1.0], torch.ones(3))


def test_numbers_of_numpy_are_options():
    relaxation = si.get_relaxation("marginals", temperature=np.float32(0.5))
    assert relaxation == si.get_relaxation("marginals", temperature=0.5)
    assert type(si.get_oracle("subset", k=np.int64(2)).k) is int
    x = torch.tensor([1.0, 0.0, 0.5])
    assert torch.equal(si.simplex.entmax(x, alpha=np.float32(1.5)), si.simplex.entmax(x, alpha=1.5))
