"""Pictures of a solution: the mean, and the structures of the support with their weights.

The module needs an extra: ``pip install 'structinf[plot]'``. Each function takes the solution of one instance, without
batch dimensions, or a :class:`structinf.SparseDistribution`, and returns a :class:`matplotlib.figure.Figure` to save or
show.

===================  ==========================================================================
``alignment``        dtw, grid_path, monotonic_alignment, needleman_wunsch
``assignment``       assignment, transportation, constraint_model (of a matrix of variables)
``constituents``     binary_tree
``factor_graph``     markov_field, FactorGraph
``lattice``          chain
``network``          spanning_tree, matching, path, flow, tour
``ranking``          ranking
``route``            dag_path
``segments``         semi_markov
``selection``        categorical, bits, subset, correlated_subset, knapsack, milp
``trees``            arborescence, projective_tree
===================  ==========================================================================

``support`` draws the structures of a support side by side, for pictures that show only the heaviest structure.
``comparison`` draws several solutions side by side. ``attention`` draws the weights of :mod:`structinf.attention`.
"""

from __future__ import annotations

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "structinf.plot needs matplotlib; run pip install matplotlib", name="matplotlib"
    ) from error

from .alignments import alignment
from .assignments import assignment
from .attentions import attention
from .brackets import constituents
from .comparisons import comparison, support
from .dependencies import trees
from .factor_graphs import factor_graph
from .lattices import lattice
from .networks import network
from .rankings import ranking
from .routes import route
from .segmentations import segments
from .selections import selection

__all__ = [
    "alignment",
    "assignment",
    "attention",
    "comparison",
    "constituents",
    "factor_graph",
    "lattice",
    "network",
    "ranking",
    "route",
    "segments",
    "selection",
    "support",
    "trees",
]
