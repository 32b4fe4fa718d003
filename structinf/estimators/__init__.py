"""Estimators of expectations over random structures, by name."""

from .base import Estimator
from .baselines import Baseline, LearnedBaseline, LeaveOneOut, MovingAverage, NoBaseline, SelfCritic
from .enumeration import Exact, SparsemaxEstimator
from .expectation import expect, get_estimator, list_estimators, register_estimator
from .latent import Latent, latent, list_methods
from .muprop import MuProp
from .relaxation_estimators import PerturbedEstimator, SparseMAPEstimator
from .relaxed_control_variates import Rebar, Relax
from .score_function import ScoreFunction
from .sum_and_sample import SumAndSample
from .topk_sparsemax import TopKSparsemax
from .unordered_set import UnorderedSet
from .weighted_structures import FunctionValues, WeightedStructures

__all__ = [
    "Baseline",
    "Estimator",
    "Exact",
    "FunctionValues",
    "Latent",
    "LearnedBaseline",
    "LeaveOneOut",
    "MovingAverage",
    "MuProp",
    "NoBaseline",
    "PerturbedEstimator",
    "Rebar",
    "Relax",
    "ScoreFunction",
    "SelfCritic",
    "SparseMAPEstimator",
    "SparsemaxEstimator",
    "SumAndSample",
    "TopKSparsemax",
    "UnorderedSet",
    "WeightedStructures",
    "expect",
    "get_estimator",
    "latent",
    "list_estimators",
    "list_methods",
    "register_estimator",
]
