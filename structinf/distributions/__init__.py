"""Structure distributions as torch.distributions: Gibbs over all structures of an oracle, sparse over K structures."""

from .gibbs import Gibbs
from .sparse import SparseDistribution

__all__ = ["Gibbs", "SparseDistribution"]
