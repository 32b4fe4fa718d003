"""Oracles made from other oracles, and pools of structures."""

from .affine import Affine
from .cvxpy_model import from_cvxpy
from .function_oracle import FunctionOracle, oracle_from_function
from .generalized import Generalized
from .gurobi_model import from_gurobi
from .math_opt_model import from_math_opt
from .model_oracle import ModelOracle
from .pool import StructurePool, is_due, mean_of_vectors, row_keys, scores_of_vectors
from .pooling import Pooled, PoolReport, pooled
from .processes import Parallel, parallel
from .pyomo_model import from_pyomo

__all__ = [
    "Affine",
    "FunctionOracle",
    "Generalized",
    "ModelOracle",
    "Parallel",
    "PoolReport",
    "Pooled",
    "StructurePool",
    "from_cvxpy",
    "from_gurobi",
    "from_math_opt",
    "from_pyomo",
    "is_due",
    "mean_of_vectors",
    "oracle_from_function",
    "parallel",
    "pooled",
    "row_keys",
    "scores_of_vectors",
]
