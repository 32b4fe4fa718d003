"""Structured inference: any structure that can be maximised over becomes a differentiable layer, by name."""

from . import errors, testing
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
from .losses import FenchelYoungLoss
from .oracle import Enumerable, GibbsOracle, KBest, Oracle, Projectable, Samplable
from .parts import Potentials
from .relaxation import RegularizedRelaxation, Relaxation
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
    "Oracle",
    "PluginError",
    "Potentials",
    "Projectable",
    "RegularizedRelaxation",
    "Relaxation",
    "Samplable",
    "Solution",
    "StructinfError",
    "UnknownNameError",
    "UnsupportedError",
    "decode",
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
