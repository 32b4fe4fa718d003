"""Checks of options, instance data and solver results that several modules share."""

from ..deferred_checks import check_number, skips_checks
from .instance_data import (
    MOST_ENUMERATED,
    bound_lengths,
    check_enumerable,
    check_feasible,
    check_instances,
    check_lengths,
    list_instances,
)
from .options import (
    check_choice,
    check_count,
    check_flag,
    check_fraction,
    check_generator,
    check_in_range,
    check_k,
    check_natural,
    check_nonnegative,
    check_positive,
    check_ratio,
    check_size,
)
from .tensors import FLOATING_DTYPES, check_floating, check_real, check_values

__all__ = [
    "FLOATING_DTYPES",
    "MOST_ENUMERATED",
    "bound_lengths",
    "check_choice",
    "check_count",
    "check_enumerable",
    "check_feasible",
    "check_flag",
    "check_floating",
    "check_fraction",
    "check_generator",
    "check_in_range",
    "check_instances",
    "check_k",
    "check_lengths",
    "check_natural",
    "check_nonnegative",
    "check_number",
    "check_positive",
    "check_ratio",
    "check_real",
    "check_size",
    "check_values",
    "list_instances",
    "skips_checks",
]
