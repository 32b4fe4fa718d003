"""Attention with weights from a map to the simplex, or from a relaxed structure over queries and keys."""

from .base import AttentionWeights, StructuredWeights
from .dependency_weights import DependencyWeights
from .grid_weights import GridWeights
from .multihead import StructuredMultiheadAttention
from .row_weights import RowWeights, SimplexWeights
from .segmentation_weights import SegmentationWeights
from .single_head import StructuredAttention

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
