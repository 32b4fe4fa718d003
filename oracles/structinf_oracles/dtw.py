"""Alignments of two series: monotone paths through a grid of cells, as in dynamic time warping."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from structinf.deferred_checks import check_data_later, skips_checks
from structinf.dp import Hypergraph, HypergraphBuilder, dispatch
from structinf.errors import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.parts import Parts
from structinf.regularizers import UNREGULARIZED
from structinf.validation import (
    check_choice,
    check_flag,
    check_instances,
    check_lengths_later,
    list_instances,
)

from .common.alignment_loops import AlignmentLoops
from .common.grids import (
    cell_indicators,
    check_cells,
    check_grid,
    check_grid_shape,
    check_sizes,
    nonzero_cells,
    outside,
)
from .common.labels import reject_labels
from .common.step_patterns import PATTERNS, Pattern, add_steps, check_bounds, check_pattern, weights_of

__all__ = ["DTW"]

_WINDOWS = ("sakoe_chiba", "itakura", "slanted_band")


@dataclass(frozen=True)
class DTW(AlignmentLoops):
    """Paths from cell (0, 0) to cell (n − 1, m − 1) of a grid, by moves right, down or diagonally down right.

    Dynamic time warping minimises a sum of costs. So θ[i, j] is minus the cost of matching item i of one series with
    item j of the other. The smoothed form with temperature γ, soft-DTW, is −γ log Σ_y exp⟨θ / γ, y⟩.

    - Scores θ, shape (..., n, m), any sign: the score of each cell. −inf forbids a cell.
    - Structure y, shape (..., n, m): 1 for each cell on the path, or the weight of the cell in a ``step_pattern``.
    - Labels, shape (..., n + m − 1, 2): the row and the column of each cell on the path, in order, padded with −1.
    - Instance data ``lengths``, shape (..., 2): the numbers of rows and of columns in use, integers in [1, n] and [1,
      m], or both 0. Default: n and m. The path ends in the last cell in use, and all parts of y outside are 0.
    - Instance data ``band``, shape (...): the band of each instance, an integer. Default: the option ``band``.
    - Instance data ``window``, shape (..., n, m), bool: the cells that the path of each instance may visit, inside the
      window of the options. Default: all cells.

    Parameters
    ----------
    band : int, optional
        Allow only cells with |i − j| ≤ band (Sakoe & Chiba 1978). The band is a number of cells. It is not a
        fraction, and is not scaled to the shape of a rectangular grid. The least band is |n − m|, as no path reaches
        the last cell with less. A band of max(n, m) or more has no effect, as does None, the default. With a band,
        sums take O(n · band) operations.
    window : {"sakoe_chiba", "itakura", "slanted_band"}, optional
        The window of allowed cells. n and m stand for the rows and the columns in use. An instance whose window holds
        no path is infeasible.

        - "sakoe_chiba", or None with ``band``: |i − j| ≤ band.
        - "itakura": the parallelogram j ≤ 2 i, i ≤ 2 j + 1, n − i ≤ 2 (m − j) and m − j < 2 (n − i) (Itakura 1975, as
          ``itakuraWindow`` of dtw-python). It holds a path if n ≤ 2 m and m ≤ 2 (n − 1), and if n = m = 1.
        - "slanted_band": |j − i (m − 1) / (n − 1)| ≤ band, a band around the diagonal from corner to corner of any
          grid. With one row, the diagonal is j = 0.
    open_begin : bool, default False
        Whether the path may begin in any cell of the first row, so that the first columns stay without partner.
    open_end : bool, default False
        Whether the path may end in any cell of the last row. With both options, the path aligns all rows with any range
        of columns (subsequence search).
    step_pattern : str or sequence of steps, default "symmetric1"
        The steps of a path: "symmetric1", "symmetric2", "symmetricP0", "symmetricP05", "symmetricP1", "symmetricP2",
        "asymmetric", "asymmetricP05", "asymmetricP1", "asymmetricP2" or "mori2006", as in dtw-python. Other patterns
        are sequences of steps, each a sequence of moves (down, right, weight). A path visits the cell at the end of
        each move, and the cell has this weight. The first cell of a path has weight 1.
    length_bounds : (int, int), optional
        The least and the largest number of cells that a path visits.

    Notes
    -----
    The running time is O(n m). A gradient needs memory for its result and, in each thread, for two numbers per cell
    of an instance. A thread processes several instances at once if their grids are small, up to 512 cells of an
    anti-diagonal. A value alone needs memory for three anti-diagonals. Sums are computed in float64. Exponentials and
    stored probabilities have the dtype of θ, so that float32 remains accurate for long series and large scores. Ties
    go to the diagonal move, then to the move down, decided from the last cell backwards.

    An instance whose lengths no path fits, by the step pattern or the length bounds, is infeasible. A band too narrow
    for the lengths is an invalid input. Open ends, step patterns other than "symmetric1" and length bounds use the
    loops for hypergraphs, with O(n m) hyperedges, times the largest length in ``length_bounds``. Scores are not
    normalized.

    Without these options, values, gradients and Hessian-vector products run in compiled loops on the CPU, for the
    built-in regularizers. On a CUDA device with triton, they run in GPU kernels for α of 1, 1.5, 2 and infinity, as do
    the best path, the k best paths and samples: one launch each, and two for samples. Other regularizers, other devices
    and derivatives of the value by autograd run in torch; there, paths and samples are computed on the CPU.

    References
    ----------
    H. Sakoe & S. Chiba, Dynamic programming algorithm optimization for spoken word recognition, IEEE Transactions on
    Acoustics, Speech, and Signal Processing 26 (1978). F. Itakura, Minimum prediction residual principle applied to
    speech recognition, IEEE Transactions on Acoustics, Speech, and Signal Processing 23 (1975). M. Cuturi & M. Blondel,
    Soft-DTW: a differentiable loss function for time-series, ICML 2017. A. Mensch & M. Blondel, Differentiable dynamic
    programming for structured prediction and attention, ICML 2018, §4.2 and algorithms 5 and 6. T. Giorgino, Computing
    and visualizing dynamic time warping alignments in R: the dtw package, Journal of Statistical Software 31 (2009).
    P. Tormene, T. Giorgino, S. Quaglini & M. Stefanelli, Matching incomplete time series with dynamic time warping,
    Artificial Intelligence in Medicine 45 (2009). Z. Zhang, R. Tavenard, A. Bailly, X. Tang, P. Tang & T. Corpetti,
    Dynamic time warping under limited warping path length, Information Sciences 393 (2017).

    Examples
    --------
    >>> cost = torch.tensor(
    ...     [[[0.0, 1.0, 4.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]]]
    ... )
    >>> dtw = DTW()
    >>> dtw.argmax(-cost)
    tensor([[[1., 0., 0.], [0., 1., 0.], [0., 0., 1.]]])
    >>> dtw.log_partition(-cost)
    tensor([1.1904])
    >>> dtw.marginals(-cost).round(decimals=3)
    tensor([[[1.0000, 0.2360, 0.0010],
             [0.2360, 0.9160, 0.2360],
             [0.0010, 0.2360, 1.0000]]])
    """

    name: ClassVar[str] = "dtw"
    search_terms: ClassVar[tuple[str, ...]] = (
        "dynamic_time_warping",
        "soft_dtw",
        "warping",
        "alignment",
        "step_pattern",
        "subsequence",
    )
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1, "band": 0, "window": 2})
    has_empty_structure: ClassVar[bool] = True
    label_ndim: ClassVar[int] = 2

    band: int | None = field(default=None, kw_only=True)
    window: str | None = field(default=None, kw_only=True)
    open_begin: bool = field(default=False, kw_only=True)
    open_end: bool = field(default=False, kw_only=True)
    step_pattern: str | Sequence[Sequence[tuple[int, int, float]]] = field(default="symmetric1", kw_only=True)
    length_bounds: tuple[int, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.window is not None:
            check_choice("window", self.window, _WINDOWS, "None")
        if self.band is not None and (
            isinstance(self.band, bool) or not isinstance(self.band, Integral) or int(self.band) < 0
        ):
            raise InvalidInputError(
                f"band must be None or an integer of at least 0, a number of cells, got {self.band!r}"
            )
        check_flag("open_begin", self.open_begin)
        check_flag("open_end", self.open_end)
        # Tuples, as options must be hashable.
        object.__setattr__(self, "step_pattern", check_pattern(self.step_pattern))
        object.__setattr__(self, "length_bounds", check_bounds(self.length_bounds))

    @property
    def _pattern(self) -> Pattern:
        steps = self.step_pattern
        return PATTERNS[steps] if isinstance(steps, str) else cast(Pattern, steps)

    @property
    def _weights(self) -> tuple[float, ...]:
        return weights_of(self._pattern)

    @property
    def _has_compiled_loop(self) -> bool:
        is_open = self.open_begin or self.open_end
        return self.step_pattern == "symmetric1" and not is_open and self.length_bounds is None

    def has_binary_parts(self, theta: Parts) -> bool:
        return self._weights == (1.0,)

    def hamming_cost(self, y: Tensor) -> Tensor:
        if self._weights != (1.0,):
            raise UnsupportedError(
                f"dtw has no Hamming cost with step_pattern={self.step_pattern!r}, whose cells have weights; pass a "
                "tensor of costs"
            )
        return cast(Tensor, super().hamming_cost(y))

    def build(self, event_shape: tuple[int, int]) -> Hypergraph:
        """Build the hypergraph, for queries and options that have no compiled loop."""
        graph, (n, m) = HypergraphBuilder(event_shape), event_shape[-2:]
        parts, inside = graph.parts.reshape(-1, n, m), self._inside_band(n, m)
        is_bounded = self.length_bounds is not None
        least, most = self.length_bounds or (0, 0)
        most = min(most, n + m - 1)
        cell, first = graph.nodes(most + 1, n, m), int(is_bounded)
        begin = np.flatnonzero(inside[0]) if self.open_begin else 0
        graph.add(cell[first, 0, begin], part=parts[0, 0, begin])
        add_steps(graph, self._pattern, cell, parts, inside, counts_cells=is_bounded)
        end = cell[0]
        if is_bounded:
            end = graph.nodes(n, m)
            graph.add(end, cell[least:])
        if self.open_end:
            found = graph.nodes(n, m)
            graph.add(found[:, 1:], found[:, :-1])
            graph.add(found, end)
            end = found
        goals = np.full((n + 1, m + 1), -1)
        goals[1:, 1:] = end
        # An instance without cells, so that a goal exists.
        goals[0, 0] = empty = graph.node()
        graph.add(empty)
        return graph.build(goals, prune=True)

    def _hypergraph_of(self, event_shape: Any) -> Hypergraph:
        # Each weight of a cell has a part of its own.
        count = len(self._weights)
        # The band of an instance replaces the option, and may be wider.
        oracle = replace(self, band=None) if "band" in self.bound else self
        return super(DTW, oracle)._hypergraph_of((count, *event_shape) if count > 1 else event_shape)

    def _flatten(self, theta: Parts) -> Tensor:
        flat, weights = super()._flatten(theta), self._weights
        return torch.cat([weight * flat for weight in weights], 1) if len(weights) > 1 else flat

    def _unflatten(self, parts: Tensor, theta: Parts) -> Parts:
        if len(self._weights) > 1:
            parts = (parts.unflatten(-1, (len(self._weights), -1)) * parts.new_tensor(self._weights)[:, None]).sum(-2)
        return super()._unflatten(parts, theta)

    def _flatten_structure(self, y: Parts) -> Tensor:
        if len(self._weights) == 1:
            return self._flatten(y)
        structure = cast(Tensor, y)
        parts, is_path = self._path_through(structure > 0)
        weighted = cast(Tensor, self._unflatten(parts, structure))
        is_path &= torch.isclose(weighted, structure.double(), rtol=1e-3).flatten(1).all(1)
        return torch.where(is_path.unsqueeze(1), parts, 0.5)  # fractions, which no path has

    def _path_through(self, visited: Tensor) -> tuple[Tensor, Tensor]:
        """Return parts of the hypergraph, (B, P) float64, and whether they are a path that visits exactly these cells.

        The cells ``visited`` (B, n, m), bool, determine the path. Among the paths inside these cells, it is the one
        with most cells.
        """
        graph = self.hypergraph(visited)
        scores = torch.where(visited, 1.0, -torch.inf).double().flatten(1).repeat(1, len(self._weights))
        goal = self._goals_on(scores.device, graph, len(scores))
        _, parts = dispatch.value_and_mean(graph, scores, goal, UNREGULARIZED)
        cells = parts.unflatten(1, (len(self._weights), *visited.shape[1:])).sum(1) > 0
        return parts.double(), (cells == visited).flatten(1).all(1)

    def _goals(self, graph: Hypergraph, batch: int) -> np.ndarray:
        lengths = self.goal_index(graph)
        goals = graph.goal(lengths, batch)
        check_instances("lengths", goals, batch, shared=False)
        if without := np.flatnonzero(goals < 0).tolist():
            sizes = "these sizes" if lengths is None else f"lengths {lengths[without[0]].tolist()}"
            raise InfeasibleError(
                f"dtw has no path for {sizes} with step_pattern={self.step_pattern!r}, band={self.band} and "
                f"length_bounds={self.length_bounds}, at {list_instances(without)}",
                without[0],
                without,
            )
        return goals

    def _inside_band(self, n: int, m: int) -> np.ndarray:
        """Return the cells inside the band of the option ``band``, (n, m)."""
        return np.abs(np.arange(n)[:, None] - np.arange(m)) <= self._option_band(n, m)

    def _graph_parts_goals(self, theta: Tensor) -> tuple[Hypergraph, Tensor, Tensor]:
        return super()._graph_parts_goals(self._without_cells_outside(theta))

    def _graph_parts_unchecked_goals(self, theta: Tensor) -> tuple[Hypergraph, Tensor, Tensor]:
        return super()._graph_parts_unchecked_goals(self._without_cells_outside(theta))

    def _without_cells_outside(self, theta: Tensor) -> Tensor:
        """Return θ with −inf outside the bands and windows of instances, which the hypergraph does not know."""
        return self._without_cells_outside_windows(theta, or_bands="band" in self.bound)

    # -- shapes and labels -----------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        lengths, bands, windows = (self.bound.get(name) for name in ("lengths", "band", "window"))
        check_grid_shape(self.label(), theta, lengths)
        # Scores without instances may have another size than the window, in batches of the padded size 0.
        has_wrong_shape = windows is not None and len(theta) > 0 and windows.shape[1:] != theta.shape[1:]
        if windows is not None and (windows.dtype is not torch.bool or has_wrong_shape):
            raise InvalidInputError(
                f"window must hold a bool for each cell, shape (..., {theta.shape[1]}, {theta.shape[2]}), got "
                f"{windows.dtype} of shape {tuple(windows.shape)} with the batch dimensions flattened"
            )
        if self.window in ("sakoe_chiba", "slanted_band") and self.band is None and bands is None:
            raise InvalidInputError(f'window="{self.window}" needs a band; pass band, a number of cells')
        if bands is not None and (bands.is_floating_point() or bands.dtype is torch.bool):
            raise InvalidInputError(f"band must hold integers, numbers of cells, got {bands.dtype}")
        batch, n, m = theta.shape
        if self.length_bounds is not None and self.length_bounds[0] > n + m - 1:
            raise InvalidInputError(
                f"length_bounds: a path through {n} rows and {m} columns visits at most {n + m - 1} cells, fewer than "
                f"the least number {self.length_bounds[0]}"
            )
        if self.open_end or not self._has_bands:
            check_grid(self.label(), theta, lengths)
            return
        if lengths is None and bands is None:
            # Python numbers, so that nothing waits for a GPU.
            if batch and self._option_band(n, m) < abs(n - m):
                _raise_narrow_band(n, m, self._option_band(n, m), 0)
            return
        if skips_checks(theta):
            return
        bands_of_option = bands is None
        sizes, bands = self._sizes_and_bands(theta)
        narrow = bands < (sizes[:, 0] - sizes[:, 1]).abs()
        wrong = (narrow | outside(sizes, (n, m))).any()
        if bands_of_option and check_data_later(wrong, operator.not_):
            check_lengths_later(sizes, 1, n, m)
        elif bool(wrong):
            check_sizes(sizes, (n, m))
            index = int(narrow.nonzero()[0, 0])
            rows, columns = sizes[index].tolist()
            _raise_narrow_band(rows, columns, int(bands[index]), index)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        sizes, _ = self._sizes_and_bands(like)
        used = check_cells(labels, sizes, sum(like.shape[1:]) - 1)
        steps = labels.diff(dim=1)
        allowed = ((steps >= 0) & (steps <= 1)).all(2) & (steps.sum(2) > 0)
        start, end = labels[:, 0] != 0, labels.amax(1) != sizes - 1
        if self.open_begin:
            reject_labels(start[:, :1] | ~used[:, :1], labels, "the path must start in row 0", defers=True)
        else:
            reject_labels(start, labels, "the path must start in cell (0, 0)", defers=True)
        if self._has_compiled_loop:
            reject_labels(
                used[:, 1:] & ~allowed, labels, "each move of the path must be one row, one column or both", defers=True
            )
        if self.open_end:
            reject_labels(end[:, :1], labels, "the path must end in the last row in use", defers=True)
        else:
            reject_labels(end, labels, "the path must end in the last cell in use", defers=True)
        mask = self.valid_parts(like)
        if mask is not None:
            # On a GPU, the check of the cells may come later, so that numbers outside are moved inside.
            row, column = (
                cells.clamp(0, size - 1) for cells, size in zip(labels.unbind(2), like.shape[1:], strict=True)
            )
            inside = mask.flatten(1).expand(len(labels), -1).gather(1, row * like.shape[2] + column)
            reject_labels(used & ~inside, labels, "the path must stay inside the band and the window", defers=True)
        cells_of_path = cell_indicators(labels, used, like)
        if self._has_compiled_loop:
            return cells_of_path
        parts, is_path = self._path_through(cells_of_path > 0)
        rises = ((steps >= 0).all(2) & (steps.sum(2) > 0)) | ~used[:, 1:]
        reject_labels(
            ~torch.cat([is_path.unsqueeze(1), rises], 1),
            labels,
            "the cells must form a path by the step pattern, within length_bounds",
        )
        return cast(Tensor, self._unflatten(parts.to(like.dtype), like))

    def decode(self, y: Tensor) -> Tensor:
        # The path visits its cells in the order of rows and columns.
        return nonzero_cells(y, sum(y.shape[1:]) - 1)

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all paths, at most a million."""
        self.validate(torch.zeros(1, *event_shape, device="cpu"))
        oracle = self
        if "band" in self.bound and self.window != "slanted_band":
            oracle = replace(self, band=int(self.bound["band"])).bind(lengths=self.bound.get("lengths"))
        structures = cast(Tensor, super(DTW, oracle).enumerate(event_shape))
        allowed = self.valid_parts(torch.zeros(1, *event_shape, device="cpu"))
        return structures if allowed is None else structures[~structures.masked_fill(allowed, 0).flatten(1).any(1)]


def _raise_narrow_band(rows: int, columns: int, band: int, index: int) -> NoReturn:
    raise InvalidInputError(
        f"band: no path through {rows} rows and {columns} columns stays within {band} cells of the diagonal, "
        f"at batch index {index}; pass a band of at least {abs(rows - columns)}"
    )
