"""The layout of a hypergraph for Triton kernels: integer tables on the device, and the sizes of the kernels' tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .hypergraph import Hypergraph
from .node_order import group_offsets

__all__ = ["DeviceTables", "Incidence", "Tile", "device_tables"]

# The numbers of hyperedges of tiles, and their warps. With 4 instead of 2 hyperedges in a thread, float64 numbers do
# not fit the registers. The sizes are estimates; few sizes mean few compilations.
_TILES = {64: 1, 256: 4, 512: 8}
# The largest number of hyperedges of a row of a tile. Nodes with more hyperedges are processed in several steps.
_MOST_COLUMNS = 64


class Tile(NamedTuple):
    """The tile of a kernel: ``rows`` nodes or parts with ``columns`` hyperedges each, powers of 2.

    With ``is_single``, no node has more than ``columns`` hyperedges. ``warps`` is the number of warps of a program.
    """

    rows: int
    columns: int
    is_single: bool
    warps: int


class Incidence(NamedTuple):
    """The hyperedges of each node or part.

    Attributes
    ----------
    offset : (n + 1,) int32 Tensor
        The entries of i in ``links`` are ``offset[i]`` up to ``offset[i + 1]``, excluded.
    links : (5, m) int32 Tensor
        For each entry, the part (P for no part), first tail, second tail (N for no tail), head and number of its
        hyperedge.
    tile : Tile
        The tile of kernels that process the entries.
    """

    offset: Tensor
    links: Tensor
    tile: Tile


class DeviceTables(NamedTuple):
    """Tables of a `Hypergraph` on a device, about 20 bytes for each hyperedge in each of the three incidences.

    Attributes
    ----------
    by_head : Incidence
        The hyperedges that lead to each node.
    by_tail : Incidence
        The hyperedges that use each node; twice those that use the node as both tails.
    by_part : Incidence
        The hyperedges with each part.
    level : (N,) int32 Tensor
        The level of each node.
    level_offset : (L + 1,) int32 Tensor
        The nodes of level i are ``level_offset[i]`` up to ``level_offset[i + 1]``, excluded.
    widths : sequence of int
        The number of nodes of each level.
    nodes, parts : int
        N and P.
    depth : int
        The largest number of nodes that wait in a walk (`structinf.kernels.hypergraph.derivations`).
    """

    by_head: Incidence
    by_tail: Incidence
    by_part: Incidence
    level: Tensor
    level_offset: Tensor
    widths: Sequence[int]
    nodes: int
    parts: int
    depth: int


def device_tables(graph: Hypergraph, device: torch.device) -> DeviceTables:
    """Return the tables of ``graph`` on ``device``; `Hypergraph.cached` keeps them."""
    edges, level_count = np.arange(graph.edges), int(graph.level[-1]) + 1
    rows = np.stack([graph.part, *graph.tails.T, graph.head, edges]).astype(np.int32)
    tails = graph.tails.T
    has_tail = tails < graph.nodes
    users = np.nonzero(has_tail)[1]
    scored = np.flatnonzero(graph.part < graph.parts)

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int32)).to(device)

    def group(owners: np.ndarray, edges_of: np.ndarray, count: int, steps: int) -> Incidence:
        order = np.argsort(owners, kind="stable")
        offset = group_offsets(owners[order], count)
        tile = _tile_for(np.diff(offset), steps)
        return Incidence(on_device(offset), on_device(rows[:, edges_of[order]]), tile)

    level_offset = group_offsets(graph.level, level_count)
    return DeviceTables(
        by_head=group(graph.head, edges, graph.nodes, level_count),
        by_tail=group(tails[has_tail], users, graph.nodes, level_count),
        by_part=group(graph.part[scored], scored, graph.parts, 1 + graph.parts // 64),
        level=on_device(graph.level),
        level_offset=on_device(level_offset),
        widths=np.diff(level_offset).tolist(),
        nodes=graph.nodes,
        parts=graph.parts,
        depth=level_count + 1,
    )


def _tile_for(degree: np.ndarray, steps: int) -> Tile:
    """Return the tile for rows with numbers of hyperedges ``degree``, which a program processes in ``steps`` steps."""
    most, mean = int(degree.max(initial=1)), int(np.ceil(degree.mean())) if degree.size else 1
    columns = most if most <= min(_MOST_COLUMNS, 4 * mean) else min(_MOST_COLUMNS, mean)
    columns = max(2, 1 << (columns - 1).bit_length())
    work = int(degree.sum()) // steps
    size = next((size for size in _TILES if work <= size), max(_TILES))
    return Tile(size // columns, columns, most <= columns, _TILES[size])
