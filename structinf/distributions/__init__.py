"""Structure distributions as torch.distributions: Gibbs over all structures of an oracle, sparse over K structures."""

from .gibbs import DistinctSamples, Gibbs
from .sparse import SparseDistribution

__all__ = ["DistinctSamples", "Gibbs", "SparseDistribution"]
