"""Oracles made from other oracles, and pools of structures."""

from .affine import Affine, Generalized
from .pool import StructurePool, is_due

__all__ = ["Affine", "Generalized", "StructurePool", "is_due"]
