"""Multi-head attention with the interface of torch.nn.MultiheadAttention and structured weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..errors import InvalidInputError
from ..oracle import Oracle
from ..relaxation import Relaxation
from ..validation import check_flag, check_floating, check_natural
from .base import AttentionWeights
from .padding import check_mask
from .single_head import StructuredAttention

__all__ = ["StructuredMultiheadAttention"]


class StructuredMultiheadAttention(nn.Module):
    """torch.nn.MultiheadAttention with weights from a map to the simplex, or from a relaxed structure.

    Each head has separate projections and a separate structure. All heads share the parameters of the weights, such as
    the transition of segmentation attention.

    The module has the parameter names of torch.nn.MultiheadAttention, so state dicts are interchangeable, and the same
    seed gives the same initial parameters. With "softmax", outputs are also the same. The options ``add_bias_kv`` and
    ``add_zero_attn`` are missing.

    Parameters
    ----------
    embed_dim : int
        Number of features of queries and contexts, a multiple of ``num_heads``.
    num_heads : int
        Number of heads.
    dropout : float
        Probability of setting a weight to 0 in training, default 0.
    bias : bool
        Whether projections have a bias, default True.
    kdim : int, optional
        Number of features of keys, ``embed_dim`` by default.
    vdim : int, optional
        Number of features of values, ``embed_dim`` by default.
    batch_first : bool
        Whether the batch is the first dimension instead of the second, default False.
    device : torch.device or str, optional
        Device of the parameters.
    dtype : torch.dtype, optional
        Dtype of the parameters.
    weights : str, callable or AttentionWeights, optional
        The weights, as for :class:`StructuredAttention`.
    oracle : str or Oracle, optional
        The oracle, instead of ``weights``, as for :class:`StructuredAttention`.
    relaxation : str or Relaxation, optional
        The relaxation of the oracle, as for :class:`StructuredAttention`.
    **options
        Options of the weights, oracle or relaxation, as for :class:`StructuredAttention`.

    Notes
    -----
    The module can replace ``self_attn`` in torch.nn.TransformerEncoderLayer and TransformerDecoderLayer. These layers
    then skip their fused softmax kernels in evaluation.

    References
    ----------
    A. Vaswani et al., Attention is all you need, NIPS 2017, §3.2.2.

    Examples
    --------
    >>> attention = StructuredMultiheadAttention(
    ...     8,
    ...     2,
    ...     batch_first=True,
    ...     oracle="arborescence",
    ...     relaxation="marginals",
    ... )
    >>> words, padding = (
    ...     torch.randn(3, 5, 8),
    ...     torch.arange(5) >= torch.tensor([5, 2, 4])[:, None],
    ... )
    >>> context, weights = attention(
    ...     words,
    ...     words,
    ...     words,
    ...     key_padding_mask=padding,
    ...     average_attn_weights=False,
    ... )
    >>> context.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 5]))
    """

    # torch's encoder layers read this attribute. False keeps them from replacing the module by a fused softmax.
    _qkv_same_embed_dim = False

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | Callable[..., Tensor] | AttentionWeights | None = None,
        oracle: str | Oracle | None = None,
        relaxation: str | Relaxation | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for option, flag in (("bias", bias), ("batch_first", batch_first)):
            check_flag(option, flag)
        check_natural("embed_dim", embed_dim)
        check_natural("num_heads", num_heads)
        for option, size in (("kdim", kdim), ("vdim", vdim)):
            if size is not None:
                check_natural(option, size)
        if embed_dim % num_heads:
            raise InvalidInputError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        sizes = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        is_packed = set(sizes.values()) == {embed_dim}

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.register_parameter("in_proj_weight", parameter(3 * embed_dim, embed_dim) if is_packed else None)
        for input_name, size in sizes.items():
            self.register_parameter(f"{input_name}_proj_weight", None if is_packed else parameter(embed_dim, size))
        self.register_parameter("in_proj_bias", parameter(3 * embed_dim) if bias else None)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.attention = StructuredAttention(
            weights, oracle=oracle, relaxation=relaxation, dropout=dropout, **options
        ).to(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset parameters as torch.nn.MultiheadAttention does: Xavier uniform projections, and biases of 0."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if (weight := getattr(self, name)) is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return contexts, with the shape of ``query``, and weights, (B, n, m) or (B, heads, n, m).

        Parameters
        ----------
        query : (n, B, embed_dim) Tensor
            The queries; (B, n, embed_dim) if ``batch_first``, or (n, embed_dim) without a batch.
        key : (m, B, kdim) Tensor
            The keys, with the batch dimension in the same place.
        value : (m, B, vdim) Tensor
            The values, with the batch dimension in the same place.
        key_padding_mask : (B, m) Tensor, optional
            True for padded keys, as for :meth:`StructuredAttention.forward`.
        need_weights : bool
            Whether to return the weights, without dropout, instead of None. Default True.
        attn_mask : (n, m) or (B · heads, n, m) Tensor, optional
            True for forbidden pairs, or a floating-point mask added to the scores.
        average_attn_weights : bool
            Whether to average the returned weights over the heads, (B, n, m). Default True.
        is_causal : bool
            Whether ``attn_mask`` is causal, for compatibility with torch. True requires ``attn_mask`` and has no other
            effect.
        query_padding_mask : (B, n) bool Tensor, optional
            True for padded queries, whose weights are 0. If one structure covers all queries, and ``query`` and ``key``
            are the same tensor, the default is the padding of the keys.
        generator : torch.Generator, optional
            Random generator for stochastic weights. The default is torch's own.
        """
        if is_causal and attn_mask is None:
            raise InvalidInputError("is_causal=True needs attn_mask, got None; pass the causal mask as attn_mask")
        for name, t in (("query", query), ("key", key), ("value", value)):
            check_floating(name, t)
            expected = self.out_proj.weight.dtype
            if t.dtype != expected and not torch.is_autocast_enabled(t.device.type):
                raise TypeError(
                    f"{name} must have the dtype of the parameters, {expected}, got {t.dtype}; cast it, or the module, "
                    "with .to()"
                )
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            raise InvalidInputError(
                "query, key and value must all have 3 dimensions, or 2 without a batch, got shapes "
                f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )
        for name, padding_mask, size in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if padding_mask.shape[-1] != size:
                raise InvalidInputError(f"{name} must have shape (..., {size}), got {tuple(padding_mask.shape)}")
        batches = [t.shape[not self.batch_first] if t.ndim == 3 else 1 for t in (query, key, value)]
        if any(a != b and 1 not in (a, b) for a, b in itertools.combinations(batches, 2)):
            raise InvalidInputError(
                f"query, key and value must have the same batch size, got {', '.join(map(str, batches))} in dimension "
                f"{int(not self.batch_first)}; batch_first={self.batch_first} sets the dimension"
            )
        if query is key and query_padding_mask is None:
            query_padding_mask = self.attention.self_attention_padding(key_padding_mask)
        q, k, v = self._project(query, key, value)
        of_keys = _for_heads("key_padding_mask", key_padding_mask, k, floating=True)
        of_queries = _for_heads("query_padding_mask", query_padding_mask, q)
        if attn_mask is not None and attn_mask.ndim == 3:
            if len(attn_mask) != len(q) * self.num_heads:
                raise InvalidInputError(
                    f"attn_mask must have shape (n, m), or (B · heads, n, m) with B · heads = "
                    f"{len(q) * self.num_heads}, got {tuple(attn_mask.shape)}"
                )
            attn_mask = attn_mask.unflatten(0, (-1, self.num_heads))
        context, weights = self.attention(
            q, k, v, of_keys, need_weights, attn_mask, query_padding_mask=of_queries, generator=generator
        )
        out = self.out_proj(context.transpose(-3, -2).flatten(-2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(-3)
        if query.ndim == 2:
            return out.squeeze(-3), None if weights is None else weights.squeeze(-3 - (not average_attn_weights))
        return out if self.batch_first else out.transpose(-3, -2), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return the projections of query, key and value, each (B, heads, length, embed_dim / heads)."""
        packed = self.in_proj_weight
        if packed is not None and query is key is value:
            projections = linear(query, packed, self.in_proj_bias).chunk(3, -1)
        else:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            weights = [getattr(self, name) for name in names] if packed is None else packed.chunk(3)
            biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            projections = [
                linear(*linear_args) for linear_args in zip((query, key, value), weights, biases, strict=True)
            ]
        return tuple(self._split_heads(input_name) for input_name in projections)

    def _split_heads(self, projected: Tensor) -> Tensor:
        if projected.ndim == 2:
            projected = projected.unsqueeze(0)
        elif not self.batch_first:
            projected = projected.transpose(0, 1)
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def _for_heads(name: str, mask: Tensor | None, of: Tensor, *, floating: bool = False) -> Tensor | None:
    """Return the mask (B, length) as (B, 1, length), to broadcast over the heads of ``of``, (B, heads, length, ...)."""
    if mask is None:
        return None
    check_mask(name, mask, (of.shape[0], of.shape[2]), floating=floating)
    return mask.unsqueeze(-2)
