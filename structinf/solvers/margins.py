"""Margins of transport plans: checks of an oracle's margins, and the totals of sums that are upper bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import PluginError
from ..oracle import TransportPolytope
from ..shapes import Float

__all__ = ["checked_margins", "margin_total_tolerance", "slack_totals"]


def checked_margins(oracle: TransportPolytope, theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the oracle's margins for ``theta`` (B, n, m); raise PluginError unless their shapes and values are valid.

    Compiled loops read the margins without bounds checks.
    """
    margins = oracle.margins(theta)
    if not (isinstance(margins, tuple) and len(margins) == 3):
        raise PluginError(f"margins of {oracle.label()}: the result must be (rows, columns, total), got {margins!r}")
    rows, columns, total = margins
    invalid: list[tuple[str, Tensor, Tensor]] = []
    for name, sums, size in (("rows", rows, theta.shape[1]), ("columns", columns, theta.shape[2])):
        if not isinstance(sums, Tensor) or sums.ndim != 2 or sums.shape[1] != size or len(sums) not in (1, len(theta)):
            received = f"shape {tuple(sums.shape)}" if isinstance(sums, Tensor) else f"a {type(sums).__name__}"
            raise PluginError(
                f"margins of {oracle.label()}: the sums of the {name} must be a tensor of shape ({len(theta)} or 1, "
                f"{size}) for theta of shape {tuple(theta.shape)}, got {received}"
            )
        invalid.append((name, sums, ~(sums >= 0) | sums.isinf()))
    # One read of a GPU for both sides.
    flags = torch.stack([wrong.any() for _, _, wrong in invalid]).tolist()
    for (name, sums, wrong), is_wrong in zip(invalid, flags, strict=True):
        if is_wrong:
            index, place = wrong.nonzero()[0].tolist()
            raise PluginError(
                f"margins of {oracle.label()}: the sums of the {name} must be finite and at least 0, got "
                f"{sums[index, place].item():g} at batch index {index}, position {place}"
            )
    if total is None:
        return margins
    if not isinstance(total, Tensor) or total.shape != (len(theta),):
        received = f"shape {tuple(total.shape)}" if isinstance(total, Tensor) else f"a {type(total).__name__}"
        raise PluginError(
            f"margins of {oracle.label()}: the total must have shape ({len(theta)},), one number for each instance, "
            f"got {received}"
        )
    wrong = ~(total >= 0) | total.isinf()
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise PluginError(
            f"margins of {oracle.label()}: the total must be finite and at least 0, got {total[index].item():g} at "
            f"batch index {index}"
        )
    return margins


def margin_total_tolerance(rows: Tensor, columns: Tensor) -> float:
    """Return the relative tolerance for equal totals of two margins, given the rounding of their dtypes."""
    eps = max(torch.finfo(margins.dtype).eps for margins in (rows, columns))
    return max(1e-9, 4 * eps, 64 * min(eps, torch.finfo(torch.float32).eps))


def slack_totals(
    rows: Tensor, columns: Tensor, total: Tensor | None
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the totals of the unused rests of the row sums and of the column sums, in float64; 0 for equalities.

    Parameters
    ----------
    rows : (B | 1, n) Tensor
        The sums of the rows, or upper bounds of the sums.
    columns : (B | 1, m) Tensor
        The sums of the columns, or upper bounds of the sums.
    total : (B,) Tensor, optional
        The total of the plan. By default the smaller total of the two margins.
    """
    rounding = margin_total_tolerance(rows, columns)
    row_total, column_total = rows.double().sum(1), columns.double().sum(1)
    shipped = torch.minimum(row_total, column_total) if total is None else total
    # A difference within the rounding of the totals is not slack.
    close = torch.maximum(row_total, column_total) * (1 - rounding)
    over_rows = torch.where(shipped < close, row_total - shipped, 0.0)
    over_columns = torch.where(shipped < close, column_total - shipped, 0.0)
    if total is None:  # only the margin with the larger total has slack
        over_rows = torch.where(row_total > column_total, over_rows, 0.0)
        over_columns = torch.where(column_total > row_total, over_columns, 0.0)
    return over_rows, over_columns
