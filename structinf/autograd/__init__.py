"""The torch.autograd.Functions of the library, which attach gradients to the results of algorithms."""

from .capped_simplex import CappedSimplexMap
from .convex_function import ConvexFunction, Gradient, float64_value, gradient, value, value_and_gradient
from .simplex_map import SimplexMap, apply_simplex_map
from .smoothed_maximum import smooth_argmax, smooth_max, smooth_max_with_backward
from .solver_gradients import (
    WeightedMean,
    attach_envelope_gradient,
    attach_jacobian,
    attach_vjp,
    attach_vjp_to_mean,
    raise_on_backward,
)

__all__ = [
    "CappedSimplexMap",
    "ConvexFunction",
    "Gradient",
    "SimplexMap",
    "WeightedMean",
    "apply_simplex_map",
    "attach_envelope_gradient",
    "attach_jacobian",
    "attach_vjp",
    "attach_vjp_to_mean",
    "float64_value",
    "gradient",
    "raise_on_backward",
    "smooth_argmax",
    "smooth_max",
    "smooth_max_with_backward",
    "value",
    "value_and_gradient",
]
