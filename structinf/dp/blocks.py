"""A hypergraph as the compiled loops take it: its nodes in blocks whose parts fit the cache together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .hypergraph import Hypergraph

__all__ = ["Blocks", "split"]

# Hyperedges with a part in a block. Buffers of so many rows of 16 float32 numbers take 128 KiB.
_MAX_BLOCK_EDGES = 2048


class Blocks(NamedTuple):
    """Arrays of `Hypergraph`, and those of its blocks, each of which has a buffer with a row for each of its parts.

    Attributes
    ----------
    offset : (N + 1,) int64
    part : (E,) int32
    tails : (E, 2) int32
    row : (E,) int32
        Of its part, in the buffer of the block that its head is in; ``height`` if it has none.
    node_offset : (K + 1,) int64
        The nodes of block k are ``node_offset[k]`` up to ``node_offset[k + 1]``.
    row_offset : (K + 1,) int64
        The rows of block k are those from ``row_offset[k]`` up to ``row_offset[k + 1]`` of the following two.
    row_part : (R,) uint32
        The part of each row, rising in each block.
    row_is_first : (R,) bool
        Whether a walk through the blocks from the last one down meets the part here first.
    degree : int
        The largest number of hyperedges of a node.
    height : int
        The largest number of rows of a block.
    depth : int
        The number of levels.
    """

    offset: np.ndarray
    part: np.ndarray
    tails: np.ndarray
    row: np.ndarray
    node_offset: np.ndarray
    row_offset: np.ndarray
    row_part: np.ndarray
    row_is_first: np.ndarray
    degree: int
    height: int
    depth: int


def split(graph: Hypergraph) -> Blocks:
    """Cut the nodes of ``graph``, in their order, into blocks."""
    scored = graph.part < graph.parts
    before = np.concatenate([[0], np.cumsum(scored)])[graph.offset]
    block_of_node = np.maximum(before[1:] - 1, 0) // _MAX_BLOCK_EDGES
    _, first = np.unique(block_of_node, return_index=True)
    node_offset = np.append(first, graph.nodes)
    block = np.repeat(np.arange(len(first)), np.diff(node_offset))[graph.head[scored]]
    # One number for each pair of a block and a part.
    pairs, row = np.unique(block * graph.parts + graph.part[scored], return_inverse=True)
    pair_block, pair_part = np.divmod(pairs, max(graph.parts, 1))
    row_offset = np.searchsorted(pair_block, np.arange(len(first) + 1))
    height = int(np.diff(row_offset).max())
    rows = np.full(graph.edges, height, np.int32)
    rows[scored] = row - row_offset[block]
    is_first = np.zeros(len(pairs), np.bool_)
    _, from_behind = np.unique(pair_part[::-1], return_index=True)
    is_first[len(pairs) - 1 - from_behind] = True
    return Blocks(
        graph.offset, graph.part, graph.tails, rows, node_offset, row_offset, pair_part.astype(np.uint32), is_first,
        graph.degree, height, int(graph.level.max()) + 1,
    )  # fmt: skip
