"""Losses of scores, given the gold structures or the true scores: Fenchel-Young losses, SPO+, rankings and others."""

from .cone import ConeLoss
from .contrastive import ContrastiveLoss
from .fenchel_young import FenchelYoungLoss
from .imitation import ImitationLoss
from .perturbation_gradient import PerturbationGradientLoss
from .ranking import RankingLoss
from .reduction import Reduction, check_reduction, reduce_losses
from .relaxed import RelaxedLoss
from .spo_plus import SPOPlusLoss

__all__ = [
    "ConeLoss",
    "ContrastiveLoss",
    "FenchelYoungLoss",
    "ImitationLoss",
    "PerturbationGradientLoss",
    "RankingLoss",
    "Reduction",
    "RelaxedLoss",
    "SPOPlusLoss",
    "check_reduction",
    "reduce_losses",
]
