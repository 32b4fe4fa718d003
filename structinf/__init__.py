"""Structured inference: any structure that can be maximised over becomes a differentiable layer, by name."""

from . import dp, errors, testing
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
from .errors import (
    ConvergenceError,
    ConvergenceWarning,
    InfeasibleError,
    InvalidInputError,
    PluginError,
    StructinfError,
    UnknownNameError,
    UnsupportedError,
)
from .layers import Layer
from .losses import FenchelYoungLoss, RelaxedLoss
from .oracle import Enumerable, GibbsOracle, KBest, Oracle, Projectable, Samplable
from .parts import Potentials
from .regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized
from .relaxation import RegularizedRelaxation, Relaxation
from .smoothing import Smoothable
from .solution import Solution

__version__ = "0.1.0"

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
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
    "Solution",
    "SquaredL2",
    "StructinfError",
    "Tsallis",
    "UnknownNameError",
    "Unregularized",
    "UnsupportedError",
    "decode",
    "dp",
    "encode",
    "errors",
    "get_oracle",
    "get_relaxation",
    "infer",
    "list_oracles",
    "list_relaxations",
    "register_oracle",
    "register_relaxation",
    "relax",
    "testing",
]
