"""The only torch.autograd.Functions of the library: algorithms outside, gradients attached here."""

from .capped import CappedMap
from .convex import ConvexFunction, Gradient, gradient, value, value_and_gradient
from .maxima import routed_max, smooth_argmax, smooth_max
from .optima import WeightedMean, attach_support, envelope, piecewise_linear
from .simplex import SimplexMap, simplex_point

__all__ = [
    "CappedMap",
    "ConvexFunction",
    "Gradient",
    "SimplexMap",
    "WeightedMean",
    "attach_support",
    "envelope",
    "gradient",
    "piecewise_linear",
    "routed_max",
    "simplex_point",
    "smooth_argmax",
    "smooth_max",
    "value",
    "value_and_gradient",
]
