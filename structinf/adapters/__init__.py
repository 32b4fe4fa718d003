"""Oracles made from other oracles, and pools of structures."""

from .pool import StructurePool, is_due

__all__ = ["StructurePool", "is_due"]
