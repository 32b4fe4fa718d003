"""Structured inference: any structure that can be maximised over becomes a differentiable layer, by name."""

from . import dp, errors, testing
from .alignment import alignment_matrix, alignment_path, soft_dtw
from .api import (
    decode,
    encode,
    get_oracle,
    get_relaxation,
    infer,
    list_oracles,
    list_relaxations,
    register_oracle,
    register_relaxation,
    relax,
)
from .barycenter import Barycenter, soft_dtw_barycenter
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
)
from .layers import Layer
from .losses import FenchelYoungLoss, RelaxedLoss
from .oracle import (
    EntropyProjectable,
    Enumerable,
    GibbsOracle,
    KBest,
    Oracle,
    Projectable,
    Samplable,
    TransportPolytope,
)
from .pairwise import pairwise_cost
from .parts import Potentials
from .queries import Best, Support, count, entropy, log_prob, nonzero, sample, topk
from .ranks import soft_rank, soft_sort
from .regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized
from .relaxation import RegularizedRelaxation, Relaxation
from .series import SoftDTWLoss, soft_dtw_between, soft_dtw_divergence
from .smoothing import Smoothable
from .solution import Solution
from .transport import sinkhorn

__version__ = "0.1.0"

__all__ = [
    "Barycenter",
    "Best",
    "ConvergenceError",
    "ConvergenceWarning",
    "EntropyProjectable",
    "Enumerable",
    "FenchelYoungLoss",
    "GibbsOracle",
    "InfeasibleError",
    "InvalidInputError",
    "KBest",
    "Layer",
    "Negentropy",
    "Oracle",
    "PluginError",
    "Potentials",
    "Projectable",
    "RegularizedRelaxation",
    "Regularizer",
    "Relaxation",
    "RelaxedLoss",
    "Samplable",
    "Smoothable",
    "SoftDTWLoss",
    "Solution",
    "SolverLimitError",
    "SquaredL2",
    "StructinfError",
    "Support",
    "TransportPolytope",
    "Tsallis",
    "UnboundedError",
    "UnknownNameError",
    "Unregularized",
    "UnsupportedError",
    "alignment_matrix",
    "alignment_path",
    "count",
    "decode",
    "dp",
    "encode",
    "entropy",
    "errors",
    "get_oracle",
    "get_relaxation",
    "infer",
    "list_oracles",
    "list_relaxations",
    "log_prob",
    "nonzero",
    "pairwise_cost",
    "register_oracle",
    "register_relaxation",
    "relax",
    "sample",
    "sinkhorn",
    "soft_dtw",
    "soft_dtw_barycenter",
    "soft_dtw_between",
    "soft_dtw_divergence",
    "soft_rank",
    "soft_sort",
    "testing",
    "topk",
]
