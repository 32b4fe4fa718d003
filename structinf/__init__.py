"""Differentiable layers and losses for discrete structures: sequences, trees, alignments, matchings, selections."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors
from . import forks as _forks  # noqa: F401  before any lazy import in a thread
from .compile import custom_op as _custom_op  # noqa: F401  torch.export.load needs the operator

if TYPE_CHECKING:
    from . import dp, metrics, noise, simplex, testing, transitions
    from .adapters import (
        Affine,
        FunctionOracle,
        Generalized,
        ModelOracle,
        Parallel,
        Pooled,
        PoolReport,
        from_cvxpy,
        from_gurobi,
        from_math_opt,
        from_pyomo,
        oracle_from_function,
        parallel,
        pooled,
    )
    from .alignments import (
        Barycenter,
        SoftDTWLoss,
        alignment_matrix,
        alignment_path,
        pairwise_cost,
        soft_dtw,
        soft_dtw_barycenter,
        soft_dtw_between,
        soft_dtw_divergence,
    )
    from .api import decode, encode, infer, relax, restrict
    from .attention import StructuredAttention, StructuredMultiheadAttention
    from .calls.resolution import (
        get_oracle,
        get_relaxation,
        list_oracles,
        list_relaxations,
        register_oracle,
        register_relaxation,
    )
    from .deferred_checks import unchecked
    from .distributions import DistinctSamples, Gibbs, SparseDistribution
    from .distributions.mixed import GaussianSparsemax, GumbelSparsemax, HardConcrete
    from .dp.graph_batch import GraphBatch
    from .errors import (
        ConvergenceError,
        ConvergenceWarning,
        InfeasibleError,
        InvalidInputError,
        PluginError,
        SolverLimitError,
        StructinfError,
        UnboundedError,
        UnknownNameError,
        UnsupportedError,
        WorkerError,
    )
    from .estimators import (
        Estimator,
        Latent,
        expect,
        get_estimator,
        latent,
        list_estimators,
        list_methods,
        register_estimator,
    )
    from .factor_graphs import FactorGraph
    from .functional.quadratic_transport import quadratic_transport
    from .functional.quantization import Quantized, VectorQuantizer, floor_straight_through, round_straight_through
    from .functional.sinkhorn import sinkhorn, sinkhorn_divergence
    from .functional.soft_rank import soft_rank, soft_sort
    from .functional.tag_scheme import TagScheme
    from .functional.temperature_schedule import TemperatureSchedule
    from .functional.token_mask import TokenMask
    from .functional.unbalanced_sinkhorn import unbalanced_sinkhorn
    from .layers import Layer
    from .linear_constraints import LinearConstraints, LinearlyConstrained
    from .losses import (
        ConeLoss,
        ContrastiveLoss,
        FenchelYoungLoss,
        ImitationLoss,
        PerturbationGradientLoss,
        RankingLoss,
        RelaxedLoss,
        SPOPlusLoss,
    )
    from .lower_bound import elbo
    from .metrics import optimality_gap, regret, relative_regret, unambiguous_regret
    from .oracle import (
        EntropyProjectable,
        Enumerable,
        Factorized,
        GibbsOracle,
        KBest,
        Oracle,
        Projectable,
        Samplable,
        TransportPolytope,
    )
    from .parts import Parts
    from .queries.k_best import TopK, topk
    from .queries.samples import sample
    from .queries.sums import count, entropy, log_partition, log_prob
    from .queries.supports import Support, enumerate_support
    from .regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized
    from .relaxation import RegularizedRelaxation, Relaxation
    from .restriction import Restrictable
    from .smoothing import Smoothable
    from .solution import Solution
    from .support_cache import SupportCache
    from .testing import check_transition_system
    from .transitions import (
        Sequences,
        SequenceSample,
        TransitionSystem,
        decode_beam,
        decode_greedy,
        sample_ancestral,
        sequence_log_prob,
        stochastic_beam,
    )

__version__ = "0.1.0"

__all__ = [
    "Affine",
    "Barycenter",
    "ConeLoss",
    "ContrastiveLoss",
    "ConvergenceError",
    "ConvergenceWarning",
    "DistinctSamples",
    "EntropyProjectable",
    "Enumerable",
    "Estimator",
    "FactorGraph",
    "Factorized",
    "FenchelYoungLoss",
    "FunctionOracle",
    "GaussianSparsemax",
    "Generalized",
    "Gibbs",
    "GibbsOracle",
    "GraphBatch",
    "GumbelSparsemax",
    "HardConcrete",
    "ImitationLoss",
    "InfeasibleError",
    "InvalidInputError",
    "KBest",
    "Latent",
    "Layer",
    "LinearConstraints",
    "LinearlyConstrained",
    "ModelOracle",
    "Negentropy",
    "Oracle",
    "Parallel",
    "Parts",
    "PerturbationGradientLoss",
    "PluginError",
    "PoolReport",
    "Pooled",
    "Projectable",
    "Quantized",
    "RankingLoss",
    "RegularizedRelaxation",
    "Regularizer",
    "Relaxation",
    "RelaxedLoss",
    "Restrictable",
    "SPOPlusLoss",
    "Samplable",
    "SequenceSample",
    "Sequences",
    "Smoothable",
    "SoftDTWLoss",
    "Solution",
    "SolverLimitError",
    "SparseDistribution",
    "SquaredL2",
    "StructinfError",
    "StructuredAttention",
    "StructuredMultiheadAttention",
    "Support",
    "SupportCache",
    "TagScheme",
    "TemperatureSchedule",
    "TokenMask",
    "TopK",
    "TransitionSystem",
    "TransportPolytope",
    "Tsallis",
    "UnboundedError",
    "UnknownNameError",
    "Unregularized",
    "UnsupportedError",
    "VectorQuantizer",
    "WorkerError",
    "alignment_matrix",
    "alignment_path",
    "check_transition_system",
    "count",
    "decode",
    "decode_beam",
    "decode_greedy",
    "dp",
    "elbo",
    "encode",
    "entropy",
    "enumerate_support",
    "errors",
    "expect",
    "floor_straight_through",
    "from_cvxpy",
    "from_gurobi",
    "from_math_opt",
    "from_pyomo",
    "get_estimator",
    "get_oracle",
    "get_relaxation",
    "infer",
    "latent",
    "list_estimators",
    "list_methods",
    "list_oracles",
    "list_relaxations",
    "log_partition",
    "log_prob",
    "metrics",
    "noise",
    "optimality_gap",
    "oracle_from_function",
    "pairwise_cost",
    "parallel",
    "pooled",
    "quadratic_transport",
    "register_estimator",
    "register_oracle",
    "register_relaxation",
    "regret",
    "relative_regret",
    "relax",
    "restrict",
    "round_straight_through",
    "sample",
    "sample_ancestral",
    "sequence_log_prob",
    "simplex",
    "sinkhorn",
    "sinkhorn_divergence",
    "soft_dtw",
    "soft_dtw_barycenter",
    "soft_dtw_between",
    "soft_dtw_divergence",
    "soft_rank",
    "soft_sort",
    "stochastic_beam",
    "testing",
    "topk",
    "transitions",
    "unambiguous_regret",
    "unbalanced_sinkhorn",
    "unchecked",
]

# __getattr__ imports these modules on first use. Importing all of them takes a quarter of the time of `import torch`.
_NAMES_BY_MODULE = {
    ".adapters": (
        "Affine FunctionOracle Generalized ModelOracle Parallel PoolReport Pooled from_cvxpy from_gurobi from_math_opt "
        "from_pyomo oracle_from_function parallel pooled"
    ),
    ".alignments": (
        "Barycenter SoftDTWLoss alignment_matrix alignment_path pairwise_cost soft_dtw soft_dtw_barycenter "
        "soft_dtw_between soft_dtw_divergence"
    ),
    ".api": "decode encode infer relax restrict",
    ".attention": "StructuredAttention StructuredMultiheadAttention",
    ".calls.resolution": (
        "get_oracle get_relaxation list_oracles list_relaxations register_oracle register_relaxation"
    ),
    ".deferred_checks": "unchecked",
    ".dp.graph_batch": "GraphBatch",
    ".distributions": "DistinctSamples Gibbs SparseDistribution",
    ".distributions.mixed": "GaussianSparsemax GumbelSparsemax HardConcrete",
    ".errors": (
        "ConvergenceError ConvergenceWarning InfeasibleError InvalidInputError PluginError SolverLimitError "
        "StructinfError UnboundedError UnknownNameError UnsupportedError WorkerError"
    ),
    ".estimators": ("Estimator Latent expect get_estimator latent list_estimators list_methods register_estimator"),
    ".factor_graphs": "FactorGraph",
    ".functional.quantization": "Quantized VectorQuantizer floor_straight_through round_straight_through",
    ".functional.sinkhorn": "sinkhorn sinkhorn_divergence",
    ".functional.soft_rank": "soft_rank soft_sort",
    ".functional.tag_scheme": "TagScheme",
    ".functional.temperature_schedule": "TemperatureSchedule",
    ".functional.token_mask": "TokenMask",
    ".functional.quadratic_transport": "quadratic_transport",
    ".functional.unbalanced_sinkhorn": "unbalanced_sinkhorn",
    ".layers": "Layer",
    ".losses": (
        "ConeLoss ContrastiveLoss FenchelYoungLoss ImitationLoss PerturbationGradientLoss RankingLoss RelaxedLoss "
        "SPOPlusLoss"
    ),
    ".linear_constraints": "LinearConstraints LinearlyConstrained",
    ".lower_bound": "elbo",
    ".metrics": "optimality_gap regret relative_regret unambiguous_regret",
    ".oracle": "EntropyProjectable Enumerable Factorized GibbsOracle KBest Oracle Projectable Samplable "
    "TransportPolytope",
    ".parts": "Parts",
    ".queries.k_best": "TopK topk",
    ".queries.samples": "sample",
    ".queries.sums": "count entropy log_partition log_prob",
    ".queries.supports": "Support enumerate_support",
    ".regularizers": "Negentropy Regularizer SquaredL2 Tsallis Unregularized",
    ".relaxation": "RegularizedRelaxation Relaxation",
    ".restriction": "Restrictable",
    ".smoothing": "Smoothable",
    ".solution": "Solution",
    ".support_cache": "SupportCache",
    ".testing": "check_transition_system",
    ".transitions": (
        "SequenceSample Sequences TransitionSystem decode_beam decode_greedy sample_ancestral sequence_log_prob "
        "stochastic_beam"
    ),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, on first use."""
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name], __name__), name)
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        try:
            value = importlib.import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{__name__}.{name}".startswith(error.name):
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_home(name)}") from None
    globals()[name] = value
    return value


def _home(name: str) -> str:
    """Return a clause that names the submodule of a public ``name``; empty without such a submodule."""
    for module in ("metrics", "simplex", "testing", "transitions"):
        if name in importlib.import_module(f".{module}", __name__).__all__:
            return f"; use {__name__}.{module}.{name}"
    return ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
