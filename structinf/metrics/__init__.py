"""Metrics of predictions: the value that decisions lose, and the agreement of structures with gold structures."""

from .regret import optimality_gap, regret, relative_regret, unambiguous_regret
from .structures import (
    AttachmentScores,
    F1Score,
    MatchingAccuracy,
    alignment_error_rate,
    attachment_scores,
    bracket_f1,
    matching_accuracy,
    span_f1,
)

__all__ = [
    "AttachmentScores",
    "F1Score",
    "MatchingAccuracy",
    "alignment_error_rate",
    "attachment_scores",
    "bracket_f1",
    "matching_accuracy",
    "optimality_gap",
    "regret",
    "relative_regret",
    "span_f1",
    "unambiguous_regret",
]
