"""The layout of a hypergraph for the compiled loops: blocks of nodes whose parts fit the cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Blocks", "split_into_blocks"]

# Largest number of hyperedges with a part in a block. A buffer of 2048 rows of 16 float32 numbers takes 128 KiB.
_MAX_BLOCK_EDGES = 2048


class Blocks(NamedTuple):
    """Arrays of a `Hypergraph` and of its blocks. The kernels keep a buffer per block, with a row for each part.

    Attributes
    ----------
    offset : (N + 1,) int64
        As in `Hypergraph`.
    part : (E,) int32
        As in `Hypergraph`.
    tails : (E, 2) int32
        As in `Hypergraph`.
    row : (E,) int32
        The buffer row of the part of each hyperedge, in the block of the head; ``height`` for no part.
    node_offset : (K + 1,) int64
        The nodes of block k are ``node_offset[k]`` up to ``node_offset[k + 1]``, excluded.
    row_offset : (K + 1,) int64
        Block k has the entries ``row_offset[k]`` up to ``row_offset[k + 1]``, excluded, of ``row_part`` and
        ``row_is_first_write``.
    row_part : (R,) uint32
        The part of each row, ascending in each block.
    row_is_first_write : (R,) bool
        Whether the row is the first with its part in a pass from the last block to the first.
    degree : int
        The largest number of hyperedges of a node.
    height : int
        The largest number of rows of a block.
    depth : int
        The number of levels.
    begin : (N,) int64
        The first node of the component of each node, as in `Hypergraph`.
    """

    offset: np.ndarray
    part: np.ndarray
    tails: np.ndarray
    row: np.ndarray
    node_offset: np.ndarray
    row_offset: np.ndarray
    row_part: np.ndarray
    row_is_first_write: np.ndarray
    degree: int
    height: int
    depth: int
    begin: np.ndarray


def split_into_blocks(
    offset: np.ndarray, part: np.ndarray, tails: np.ndarray, level: np.ndarray, parts: int, begin: np.ndarray
) -> Blocks:
    """Split the nodes of a `Hypergraph` into consecutive blocks; ``parts`` is the number of parts."""
    nodes, edges, degree = len(level), len(part), np.diff(offset)
    head = np.repeat(np.arange(nodes, dtype=np.int32), degree)
    scored = part < parts
    before = np.concatenate([[0], np.cumsum(scored)])[offset]
    # The blocks of a component do not depend on the other components, as sums over blocks would.
    block_of_node = np.maximum(before[1:] - before[begin] - 1, 0) // _MAX_BLOCK_EDGES
    first = np.flatnonzero((np.diff(block_of_node, prepend=-1) != 0) | (np.diff(begin, prepend=-1) != 0))
    node_offset = np.append(first, nodes)
    block = np.repeat(np.arange(len(first)), np.diff(node_offset))[head[scored]]
    # One number for each pair of a block and a part.
    pairs, row = np.unique(block * parts + part[scored], return_inverse=True)
    pair_block, pair_part = np.divmod(pairs, max(parts, 1))
    row_offset = np.searchsorted(pair_block, np.arange(len(first) + 1))
    height = int(np.diff(row_offset).max())
    rows = np.full(edges, height, np.int32)
    rows[scored] = row - row_offset[block]
    is_first = np.zeros(len(pairs), np.bool_)
    _, from_behind = np.unique(pair_part[::-1], return_index=True)
    is_first[len(pairs) - 1 - from_behind] = True
    return Blocks(
        offset, part, tails, rows, node_offset, row_offset, pair_part.astype(np.uint32), is_first,
        int(degree.max()), height, int(level.max()) + 1, begin,
    )  # fmt: skip
