"""Random structures as torch.distributions: Gibbs ones over all structures of an oracle, sparse ones over a few."""

from .gibbs import Gibbs
from .sparse import SparseDistribution

__all__ = ["Gibbs", "SparseDistribution"]
