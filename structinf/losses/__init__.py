"""Losses of scores, given the gold structures: Fenchel-Young losses, distances from relaxed structures, and SPO+."""

from .fenchel_young import FenchelYoungLoss
from .reduction import Reduction, check_reduction, reduce_losses
from .relaxed import RelaxedLoss
from .spo_plus import SPOPlusLoss, regret

__all__ = ["FenchelYoungLoss", "Reduction", "RelaxedLoss", "SPOPlusLoss", "check_reduction", "reduce_losses", "regret"]
