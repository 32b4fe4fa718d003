"""Attention whose weights come from any map to the simplex, or from a relaxed structure over queries and keys."""

from .dependency import DependencyWeights
from .grid import GridWeights
from .multihead import StructuredMultiheadAttention
from .rows import RowWeights, SimplexWeights
from .segmentation import SegmentationWeights
from .single import StructuredAttention
from .weights import AttentionWeights, StructuredWeights

__all__ = [
    "AttentionWeights",
    "DependencyWeights",
    "GridWeights",
    "RowWeights",
    "SegmentationWeights",
    "SimplexWeights",
    "StructuredAttention",
    "StructuredMultiheadAttention",
    "StructuredWeights",
]
