"""Oracles made from other oracles, and pools of structures."""

from .affine import Affine, Generalized
from .function_oracle import FunctionOracle, oracle_from_function
from .pool import StructurePool, is_due
from .pooling import Pooled, PoolReport, pooled
from .processes import Parallel, parallel

__all__ = [
    "Affine",
    "FunctionOracle",
    "Generalized",
    "Parallel",
    "PoolReport",
    "Pooled",
    "StructurePool",
    "is_due",
    "oracle_from_function",
    "parallel",
    "pooled",
]
