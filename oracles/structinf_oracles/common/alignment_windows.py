"""Bands and windows of alignments: the cells of the grid that paths may visit."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from structinf.dp import HypergraphProgram
from structinf.validation import check_instances

from .grids import cells_in_use, sizes_in_use

__all__ = ["AlignmentWindows"]


class AlignmentWindows(HypergraphProgram):
    """A program over paths through a grid, whose cells the options and instance data restrict.

    Attributes
    ----------
    band : int or None
        The option of the largest |i − j|.
    window : str or None
        The option of a window.
    """

    band: int | None
    window: str | None

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        _, n, m = theta.shape
        most = max(n, m) - 1
        if self.window in ("itakura", "slanted_band") or "window" in self.bound:
            return self._inside(theta)
        if not self.bound:
            return None if self.band is None or self.band >= most else self._inside(theta)
        if theta.device.type == "cpu":  # on a GPU, a mask costs less than to wait for the answer
            sizes, bands = self._sizes_and_bands(theta)
            if bool((sizes == sizes.new_tensor([n, m])).all() and (bands >= most).all()):
                return None
        return self._inside(theta)

    def _inside(self, theta: Tensor) -> Tensor:
        """Return the cells in use and inside the bands and windows, (B, n, m)."""
        if self.window not in ("itakura", "slanted_band") and not self._has_bands:
            inside = cells_in_use(sizes_in_use(self.bound, theta.shape[1:], theta), theta.shape[1:])
            return self._inside_windows(inside)
        sizes, bands = self._sizes_and_bands(theta)
        inside = cells_in_use(sizes, theta.shape[1:])
        i, j = (torch.arange(size, device=theta.device) for size in theta.shape[1:])
        i = i.unsqueeze(1)
        n, m = sizes.view(-1, 2, 1, 1).unbind(1)
        if self.window == "slanted_band":
            widths = self.bound["band"] if "band" in self.bound else torch.full_like(bands, cast(int, self.band))
            # |j − i (m − 1) / (n − 1)| ≤ band, in integers; with n = 1, i is 0.
            inside &= (j * (n - 1).clamp(min=1) - i * (m - 1)).abs() <= widths.view(-1, 1, 1) * (n - 1).clamp(min=1)
        else:
            inside &= (i - j).abs() <= bands.view(-1, 1, 1)
        if self.window == "itakura":
            inside &= (j <= 2 * i) & (i <= 2 * j + 1) & (n - i <= 2 * (m - j)) & (m - j < 2 * (n - i))
        return self._inside_windows(inside)

    def _inside_windows(self, inside: Tensor) -> Tensor:
        """Return the cells ``inside`` (B, n, m), overwritten, that the windows of instances allow."""
        if "window" in self.bound and len(inside):
            check_instances("window", self.bound["window"], len(inside))
            inside &= self.bound["window"]
        return inside

    def _without_cells_outside_windows(self, theta: Tensor, *, or_bands: bool = False) -> Tensor:
        """Return θ with −inf outside windows that are no bands around |i − j| = 0, or also outside these bands."""
        if or_bands or self.window in ("itakura", "slanted_band") or "window" in self.bound:
            return theta.masked_fill(~self._inside(theta), -torch.inf)
        return theta

    @property
    def _has_bands(self) -> bool:
        """Whether an option or instance data bound |i − j|."""
        return self.window != "slanted_band" and (self.band is not None or "band" in self.bound)

    def _option_band(self, n: int, m: int) -> int:
        """Return the largest |i − j| of the options."""
        return max(n, m) if self.band is None or self.window == "slanted_band" else int(self.band)

    def _sizes_and_bands(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows and columns in use (B, 2), and the bands (B,), in int64 on the device of θ."""
        batch, n, m = theta.shape
        lengths = sizes_in_use(self.bound, (n, m), theta)
        bands = None if self.window == "slanted_band" else self.bound.get("band")
        if bands is None:
            bands = torch.full((batch,), self._option_band(n, m), device=theta.device)
        check_instances("band", bands, batch)
        return lengths, bands
