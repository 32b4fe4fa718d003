"""Soft-DTW: smoothed alignment costs of two series, expected alignments, a loss, and barycenters of series."""

from .barycenter import Barycenter, soft_dtw_barycenter
from .pairwise import pairwise_cost
from .soft_dtw_costs import alignment_matrix, alignment_path, soft_dtw
from .soft_dtw_series import SoftDTWLoss, soft_dtw_between, soft_dtw_divergence

__all__ = [
    "Barycenter",
    "SoftDTWLoss",
    "alignment_matrix",
    "alignment_path",
    "pairwise_cost",
    "soft_dtw",
    "soft_dtw_barycenter",
    "soft_dtw_between",
    "soft_dtw_divergence",
]
