"""The only torch.autograd.Functions of the library: algorithms outside, gradients attached here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from .errors import UnsupportedError
from .parts import Potentials, as_tuple, batch_size, differentiate, inner, like_potentials, reduce_like, weigh
from .regularizers import Regularizer, probabilities, smoothed_maximum

if TYPE_CHECKING:
    import jaxtyping

__all__ = [
    "ConvexFunction",
    "WeightedMean",
    "attach_support",
    "envelope",
    "gradient",
    "piecewise_linear",
    "routed_max",
    "smooth_argmax",
    "smooth_max",
    "value",
    "value_and_gradient",
]


# ----------------------------------------------------------------------------- convex functions of θ
# A function f with gradient μ and Hessian H, all with algorithms of their own (log Z with E[Y] and
# Cov[Y]; a smoothed recursion). Each of the maps below is a Function whose backward is made of the
# others, so that two derivatives of μ (three of f) come out right; the third and later ones are
# taken by autograd through f's own differentiable value.


class ConvexFunction(Protocol):
    """A function of θ, instance by instance, that knows its derivatives. Called under no_grad but for ``value``."""

    def value(self, theta: Potentials) -> Tensor:
        """f(θ), (B,); differentiable by autograd to any order wherever an entry of θ requires grad."""
        ...

    def gradient(self, theta: Potentials) -> Potentials:
        """∇f, (B, *event)."""
        ...

    def value_and_gradient(self, theta: Potentials) -> tuple[Tensor, Potentials]:
        """Both, for the price of the gradient where one pass makes them."""
        ...

    def vjp(self, theta: Potentials, weight: Tensor) -> Potentials:
        """Σ_b weight_b ∇f_b in θ's own form, without an array for each instance of a shared tensor."""
        ...

    def hessian_product(self, theta: Potentials, v: Potentials) -> Potentials:
        """∇²f v, (B, *event)."""
        ...


def value(function: ConvexFunction, theta: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
    """f(θ), (B,), with gradient ∇f."""
    tensors = as_tuple(theta)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return function.value(theta)
    if any(len(t) == 1 for t in tensors) and batch_size(theta) != 1:
        # A gradient of each instance's own would be larger than the shared tensor's by the batch.
        return _Value.apply(function, isinstance(theta, tuple), *tensors)
    return value_and_gradient(function, theta)[0]


def gradient(function: ConvexFunction, theta: Potentials) -> Potentials:
    """∇f, (B, *event), whose Jacobian is the Hessian of f."""
    return like_potentials(_Gradient.apply(function, isinstance(theta, tuple), *as_tuple(theta)), theta)


def value_and_gradient(function: ConvexFunction, theta: Potentials) -> tuple[Tensor, Potentials]:
    """:func:`value` and :func:`gradient` from one pass, where f has it."""
    found, *gradients = _ValueAndGradient.apply(function, isinstance(theta, tuple), *as_tuple(theta))
    return found, like_potentials(gradients, theta)


def _form(tensors: tuple[Tensor, ...], is_tuple: bool) -> Potentials:
    return tensors if is_tuple else tensors[0]


def _zeros_for_missing(cotangents: tuple[Tensor | None, ...], like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) if c is None else c for c, t in zip(cotangents, like, strict=True))


class _Value(Function):
    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, *theta: Tensor) -> Tensor:
        return function.value(_form(theta, is_tuple))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, *theta = inputs
        ctx.save_for_backward(*theta)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Any:
        gradients = _Vjp.apply(ctx.function, ctx.is_tuple, weight, *ctx.saved_tensors)
        return None, None, *gradients


class _Vjp(Function):
    """Σ_b w_b μ_b in θ's form."""

    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, weight: Tensor, *theta: Tensor) -> tuple[Tensor, ...]:
        return as_tuple(function.vjp(_form(theta, is_tuple), weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, weight, *theta = inputs
        ctx.save_for_backward(weight, *theta)

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Any:
        # ⟨v, Σ_b w_b μ_b⟩ has gradient Σ_b w_b H_b v in θ, and ⟨v, μ_b⟩ in w_b.
        weight, *theta = ctx.saved_tensors
        form = _form(tuple(theta), ctx.is_tuple)
        grad_weight = inner(_form(v, ctx.is_tuple), gradient(ctx.function, form)) if ctx.needs_input_grad[2] else None
        if not any(ctx.needs_input_grad[3:]):
            return None, None, grad_weight, *[None] * len(theta)
        products = _HessianProduct.apply(ctx.function, ctx.is_tuple, len(theta), *theta, *v)
        weighted = weigh(_form(products, ctx.is_tuple), weight)
        return None, None, grad_weight, *as_tuple(reduce_like(weighted, form))


class _Gradient(Function):
    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, *theta: Tensor) -> tuple[Tensor, ...]:
        return as_tuple(function.gradient(_form(theta, is_tuple)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, *theta = inputs
        ctx.save_for_backward(*theta)

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Any:
        theta = ctx.saved_tensors
        products = _HessianProduct.apply(ctx.function, ctx.is_tuple, len(theta), *theta, *v)
        return None, None, *as_tuple(reduce_like(_form(products, ctx.is_tuple), _form(theta, ctx.is_tuple)))


class _ValueAndGradient(Function):
    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, *theta: Tensor) -> tuple[Tensor, ...]:
        found, gradients = function.value_and_gradient(_form(theta, is_tuple))
        return found, *as_tuple(gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, *theta = inputs
        ctx.save_for_backward(*theta, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, weight: Tensor | None, *v: Tensor | None) -> Any:
        n = len(v)
        theta, gradients = ctx.saved_tensors[:n], ctx.saved_tensors[n:]
        total = None if weight is None else as_tuple(weigh(gradients, weight))
        if any(z is not None for z in v):
            products = _HessianProduct.apply(ctx.function, ctx.is_tuple, n, *theta, *_zeros_for_missing(v, gradients))
            total = products if total is None else tuple(map(torch.add, total, products))
        if total is None:
            return None, None, *[None] * n
        return None, None, *as_tuple(reduce_like(tuple(total), tuple(theta)))


class _HessianProduct(Function):
    """H v; H is symmetric, so it is its own transpose."""

    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, n: int, *theta_v: Tensor) -> tuple[Tensor, ...]:
        theta, v = _form(theta_v[:n], is_tuple), _form(theta_v[n:], is_tuple)
        return as_tuple(function.hessian_product(theta, v))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, ctx.n, *theta_v = inputs
        ctx.save_for_backward(*theta_v)

    @staticmethod
    def backward(ctx: Any, *w: Tensor) -> Any:
        # ⟨w, H v⟩ is differentiated as it stands, through the function's value in torch.
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Aliases, so that gradients stop here unless a graph of higher order is being built.
            inputs = [t.view_as(t) if create_graph else t.detach() for t in ctx.saved_tensors]
            for t in inputs:
                t.requires_grad_()
            theta, v = inputs[: ctx.n], inputs[ctx.n :]
            size = w[0].shape[0]
            spread = [t.expand(size, *t.shape[1:]) for t in theta]
            total = ctx.function.value(_form(tuple(spread), ctx.is_tuple)).sum()
            means = differentiate(total, spread, create_graph=True)
            # Not inner(): it has no derivative where v is 0.
            tilt = torch.stack([(m * z).sum() for m, z in zip(means, v, strict=True)]).sum()
            products = differentiate(tilt, spread, create_graph=True)
            final = torch.stack([(p * z).sum() for p, z in zip(products, w, strict=True)]).sum()
            gradients = differentiate(final, inputs, create_graph=create_graph)
        return None, None, None, *gradients


# ----------------------------------------------------------------------------- smoothed maxima


def smooth_max(regularizer: Regularizer, x: Tensor, dim: int = -1) -> Tensor:
    """max ⟨x, q⟩ − Ω(q) over the simplex along ``dim``, which is removed; differentiable to any order."""
    return _SmoothMax.apply(regularizer, x.movedim(dim, -1))


def smooth_argmax(regularizer: Regularizer, x: Tensor, dim: int = -1) -> Tensor:
    """The gradient of :func:`smooth_max`, probabilities along ``dim``; differentiable to any order."""
    return _SmoothArgmax.apply(regularizer, x.movedim(dim, -1)).movedim(-1, dim)


class _SmoothMax(Function):
    @staticmethod
    def forward(regularizer: Regularizer, x: Tensor) -> Tensor:
        return smoothed_maximum(regularizer, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.regularizer, x = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, g.unsqueeze(-1) * _SmoothArgmax.apply(ctx.regularizer, x)


class _SmoothArgmax(Function):
    @staticmethod
    def forward(regularizer: Regularizer, x: Tensor) -> Tensor:
        return probabilities(regularizer, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.regularizer, _ = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, z: Tensor) -> Any:
        # The Hessian is a function of q alone, which is this Function's output: derivatives of all orders follow.
        (q,) = ctx.saved_tensors
        return None, ctx.regularizer.hessian_product(q, z)


def routed_max(regularizer: Regularizer, x: Tensor, dim: int, route: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """:func:`smooth_max` whose backward sends on ``route(x, g)``, (..., n), where that one's sends the adjoint g q.

    Walks through a recursion are made of it: an adjoint g (...) says how often they come by. First derivatives only.
    """
    return _RoutedMax.apply(regularizer, x.movedim(dim, -1), route)


class _RoutedMax(Function):
    @staticmethod
    def forward(regularizer: Regularizer, x: Tensor, route: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return smoothed_maximum(regularizer, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, x, ctx.route = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedError("a walk through a recursion has no derivative; the smoothed value and mean have")
        (x,) = ctx.saved_tensors
        return None, ctx.route(x, g), None


# ----------------------------------------------------------------------------- optimal values, piecewise linear maps


def envelope(value: Tensor, theta: Potentials, mean: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
    """``value`` = max ⟨θ, μ⟩ − Ω(μ), (B,), given the gradient μ that the envelope theorem says it has.

    The solver is not differentiated for it; the Hessian is that of the ``mean``'s own gradient rule.
    """
    return _Envelope.apply(value, len(as_tuple(theta)), *as_tuple(theta), *as_tuple(mean))


class _Envelope(Function):
    @staticmethod
    def forward(value: Tensor, n: int, *theta_mean: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.n, *theta_mean = inputs
        ctx.shared = [t.shape[0] for t in theta_mean[: ctx.n]]
        ctx.save_for_backward(*theta_mean[ctx.n :])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        gradients = []
        for mean, rows in zip(ctx.saved_tensors, ctx.shared, strict=True):
            each = mean * g.view(-1, *[1] * (mean.ndim - 1))
            gradients.append(each.sum(0, keepdim=True) if rows == 1 and mean.shape[0] != 1 else each)
        return None, None, *gradients, *[None] * ctx.n


def piecewise_linear(value: Tensor, theta: Tensor, jvp: Callable[..., Tensor], vjp: Callable[..., Tensor]) -> Tensor:
    """``value``, of a piecewise linear map at ``theta``, given products with its Jacobian there and the transpose."""
    return _PiecewiseLinear.apply(value, theta, jvp, vjp) if torch.is_grad_enabled() and theta.requires_grad else value


class _PiecewiseLinear(Function):
    @staticmethod
    def forward(value: Tensor, theta: Tensor, jvp: Callable[..., Tensor], vjp: Callable[..., Tensor]) -> Tensor:
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *_, ctx.jvp, ctx.vjp = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, piecewise_linear(ctx.vjp(g), g, ctx.vjp, ctx.jvp), None, None  # linear in g, constant in θ


# ----------------------------------------------------------------------------- means of a few structures


class WeightedMean(Protocol):
    """A solver's result μ = Σ_k p_k y_k that knows the transpose of its own Jacobian."""

    mean: Potentials
    weights: Tensor

    def vjp(self, mean_cotangent: Potentials | None, weights_cotangent: Tensor | None) -> Potentials: ...


def attach_support(result: WeightedMean, theta: Potentials, what: str) -> tuple[Potentials, Tensor]:
    """The mean and weights of ``result``, with ``result.vjp`` as their gradient in ``theta``.

    Asking for a second derivative is an UnsupportedError that names ``what``.
    """
    tensors = as_tuple(theta)
    *mean, weights = _AttachSupport.apply(result, isinstance(theta, tuple), what, *tensors)
    return like_potentials(mean, theta), weights


class _AttachSupport(Function):
    @staticmethod
    def forward(result: WeightedMean, is_tuple: bool, what: str, *theta: Tensor) -> tuple[Tensor, ...]:
        return *(m.clone() for m in as_tuple(result.mean)), result.weights.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.result, ctx.is_tuple, ctx.what, *theta = inputs
        ctx.save_for_backward(*theta)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        theta = ctx.saved_tensors
        if all(c is None for c in cotangents):  # an envelope's second derivative passes through here empty-handed
            return None, None, None, *[None] * len(theta)
        mean = as_tuple(ctx.result.mean)
        *v, weights = cotangents
        v_mean = _form(_zeros_for_missing(tuple(v), mean), ctx.is_tuple) if any(c is not None for c in v) else None
        with torch.no_grad():
            gradients = as_tuple(reduce_like(ctx.result.vjp(v_mean, weights), _form(theta, ctx.is_tuple)))
        if torch.is_grad_enabled():
            sources = [t for t in (*theta, *cotangents) if t is not None]
            gradients = _FirstOrderOnly.apply(ctx.what, len(gradients), *gradients, *sources)
        return None, None, None, *gradients


class _FirstOrderOnly(Function):
    """The identity on its first ``n`` tensors, which depend on the others in a way that is not offered."""

    @staticmethod
    def forward(what: str, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.clone() for t in tensors[:n])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.what = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise UnsupportedError(
            f"{ctx.what} offers first derivatives only; a Fenchel-Young loss of it has second ones, "
            "and the marginals relaxation is twice differentiable"
        )
