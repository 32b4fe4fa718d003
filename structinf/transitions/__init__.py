"""Structures built one action at a time: beam search, samples, and built-in transition systems"""

from .arc_hybrid import ArcHybrid
from .arc_standard import ArcStandard
from .bits import BitsInOrder, BitsState
from .dependency_state import DependencyParser, ParserState
from .plackett_luce import PlackettLuce, RankingState
from .sequences import (
    Sequences,
    SequenceSample,
    decode_beam,
    decode_greedy,
    enumerate_sequences,
    sample_ancestral,
    sequence_log_prob,
    stochastic_beam,
)
from .shift_reduce import ShiftReduce, ShiftReduceState
from .states import Shared, select
from .system import TransitionSystem

__all__ = [
    "ArcHybrid",
    "ArcStandard",
    "BitsInOrder",
    "BitsState",
    "DependencyParser",
    "ParserState",
    "PlackettLuce",
    "RankingState",
    "SequenceSample",
    "Sequences",
    "Shared",
    "ShiftReduce",
    "ShiftReduceState",
    "TransitionSystem",
    "decode_beam",
    "decode_greedy",
    "enumerate_sequences",
    "sample_ancestral",
    "select",
    "sequence_log_prob",
    "stochastic_beam",
]
