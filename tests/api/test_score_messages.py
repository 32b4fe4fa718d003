"""Errors about scores: NaN, types and shapes, with the place and the remedy."""

from __future__ import annotations

import functools
from typing import Any, cast

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import structinf as si
from structinf import InfeasibleError, InvalidInputError, UnsupportedError, relax, simplex
from structinf.calls.resolution import get_oracle
from toy_oracles import Explicit, Walk, walk

INF, NAN = torch.inf, torch.nan


# ----------------------------------------------------------------------------- NaN and infinity


@pytest.mark.parametrize(("value", "word"), [(NAN, "NaN"), (INF, r"\+inf")])
def test_nan_and_inf_are_refused_with_their_place(value, word):
    theta = torch.zeros(2, 3, 4)
    theta[1, 0, 2] = value
    with pytest.raises(
        InvalidInputError, match=rf"^theta holds {word} at batch index 3, part \(2,\); .*−inf to forbid"
    ):
        relax(theta, Explicit(), "map")


def test_nan_in_a_tuple_names_the_tensor():
    unary, transition = walk(2)
    transition[0, 0] = NAN
    with pytest.raises(InvalidInputError, match=r"^theta\[1\] holds NaN at part \(0, 0\), shared by the batch; "):
        relax((unary, transition), Walk(), "map")
    unary[1, 2, 0] = INF
    with pytest.raises(InvalidInputError, match=r"^theta\[0\] holds \+inf at batch index 1, part \(2, 0\)"):
        relax((unary, transition), Walk(), "map")


def test_nan_is_not_called_infeasible():
    cost = torch.tensor([[1.0, INF], [NAN, INF]])
    with pytest.raises(InvalidInputError, match="NaN") as error:
        relax(-cost, "assignment", "map")
    assert not isinstance(error.value, InfeasibleError)


@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap"])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_finite_input_never_gives_nan(relaxation, scale):
    theta = scale * torch.randn(5, 4)
    theta[0] = 0
    theta[1, :2] = -INF
    theta.requires_grad_()
    mean = relax(theta, "categorical", relaxation)
    mean.square().sum().backward()
    assert mean.isfinite().all()
    assert theta.grad.isfinite().all()
    assert not theta.grad[1, :2].any()


# ----------------------------------------------------------------------------- types and shapes


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64])
def test_other_dtypes_are_type_errors(dtype):
    labels = "" if dtype.is_complex else ", or pass the scores before the labels if these are labels"
    with pytest.raises(TypeError, match=rf"^theta must be real floating-point scores, got {dtype}; .* first{labels}$"):
        relax(torch.zeros(2, 4, dtype=dtype), Explicit(), "map")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_dtypes_of_8_bits_are_type_errors(dtype):
    scores = torch.zeros(2, 4).to(dtype)
    with pytest.raises(TypeError, match=rf"^theta must be .*, got {dtype}, which has less than 16 bits; .*\.float\(\)"):
        relax(scores, "categorical", "map")
    for function in (simplex.sparsemax, simplex.fusedmax, si.soft_rank):
        with pytest.raises(TypeError, match=rf"^(x|theta) must be a tensor.*, got a tensor of {dtype}; convert it to"):
            function(scores)


ON_SCORES: dict[str, Any] = {
    "relax": lambda t: relax(t(2, 4), "categorical", "map"),
    "tuple": lambda t: relax((t(2, 3, 4), t(4, 4)), "chain", "marginals"),
    "infer": lambda t: si.infer(t(2, 3, 3), "assignment", "sparsemap"),
    "loss": lambda t: si.FenchelYoungLoss("categorical", "marginals")(t(2, 4), torch.tensor([0, 1])),
    "topk": lambda t: si.topk(t(2, 4), "categorical", 2),
    "Gibbs": lambda t: si.Gibbs(t(2, 4), "categorical"),
    "sparsemax": lambda t: simplex.sparsemax(t(2, 4)),
    "soft_rank": lambda t: si.soft_rank(t(2, 4)),
    "soft_dtw": lambda t: si.soft_dtw(t(4, 4)),
    "gold": lambda t: si.FenchelYoungLoss("categorical", "map")(torch.zeros(2, 4), t(2, 4)),
    "target": lambda t: simplex.entmax_loss(torch.zeros(2, 4), t(2, 4)),
    "alpha": lambda t: simplex.entmax(torch.zeros(2, 4), t(2, 1)),
    "true_theta": lambda t: si.regret(torch.zeros(2, 4), t(2, 4), "categorical"),
    "constrain": lambda t: si.TagScheme(["O", "B"]).constrain(t(3, 2), torch.zeros(2, 2)),
    "soft_dtw_between": lambda t: si.soft_dtw_between(t(4, 2), t(4, 2)),
    "decode": lambda t: si.decode(t(2, 4), "categorical"),
    "cost": lambda t: si.FenchelYoungLoss("categorical", "map", cost=t(2, 4))(torch.zeros(2, 4), torch.tensor([0, 1])),
    "labels": lambda t: si.encode(t(2).long(), torch.zeros(2, 4), "categorical"),
    "lengths": lambda t: relax(walk(2), Walk(), "map", lengths=t(2).long()),
}


@pytest.mark.parametrize("call", ON_SCORES.values(), ids=ON_SCORES)
def test_tensors_without_values(call):
    with pytest.raises(UnsupportedError, match=r"^\S+ is a meta tensor of shape \(.*\), without the values .*; pass a"):
        call(lambda *shape: torch.zeros(shape, device="meta"))
    with FakeTensorMode() as mode:
        fake = functools.partial(mode.from_tensor, static_shapes=True)
    with pytest.raises(UnsupportedError, match=r"^\S+ is a fake tensor of shape \(.*\), without the values .*; pass a"):
        call(lambda *shape: fake(torch.zeros(shape)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(layout):
    nested = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=layout)
    with pytest.raises(TypeError, match=r"^theta must be a dense tensor, got a nested tensor; .*lengths"):
        relax(nested, "categorical", "map")


@pytest.mark.parametrize("value", [[[1.0, 2.0, 3.0, 4.0]], None, 3.0, "chain"])
def test_what_is_no_tensor_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"^theta(\[0\])? must be a tensor( or a tuple of tensors)?, got "):
        relax(value, Explicit(), "map")


def test_lists_and_arrays_get_a_conversion():
    with pytest.raises(TypeError, match=r"^theta\[0\] must be a tensor, got list; convert with torch.tensor\(theta\)$"):
        relax(cast(Any, [[1.0, 2.0], [3.0, 4.0]]), "assignment", "map")
    with pytest.raises(TypeError, match=r"^theta\[1\] must be a tensor, got list; .*torch.tensor\(theta\[1\]\)$"):
        relax(cast(Any, (torch.zeros(4, 3), [[1.0]])), "chain", "map")


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((4, 3), r"one shape of 3 dimensions for chain, got \(4, 3\); a tuple"),
        (((4, 3), (3,)), "a tuple of 2 shapes, of 2 dimensions and 2 dimensions for chain"),
        (("6",), "hold sizes, integers of at least 0"),
        ((-1,), "hold sizes"),
        (("6", 3), "hold sizes"),
        (None, "hold sizes"),
    ],
)
def test_wrong_event_shapes(shape, wanted):
    with pytest.raises(InvalidInputError, match=f"^event_shape must (be )?{wanted}"):
        si.testing.check_oracle(get_oracle("chain"), event_shape=shape)


def test_numpy_arrays_are_no_tensors():
    with pytest.raises(TypeError, match=r"got ndarray; convert it with torch.from_numpy\(theta\)"):
        relax(torch.zeros(1, 4).numpy(), Explicit(), "map")


def test_sparse_tensors_are_refused():
    with pytest.raises(TypeError, match=r"call .to_dense\(\) first"):
        relax(torch.zeros(2, 4).to_sparse(), Explicit(), "map")


def test_wrong_rank_names_the_shape():
    with pytest.raises(InvalidInputError, match=r"^theta: assignment needs at least 2 dimensions .*got shape \(3,\)"):
        relax(torch.zeros(3), "assignment", "map")
    with pytest.raises(
        InvalidInputError, match=r"^theta\[1\]: toy_walk needs at least 2 dimensions .*got shape \(2,\)"
    ):
        relax((torch.zeros(3, 2), torch.zeros(2)), Walk(), "map")


def test_wrong_form():
    with pytest.raises(InvalidInputError, match="toy_walk takes a tuple of 2 tensors, got one tensor"):
        relax(torch.zeros(3, 2), Walk(), "map")
    with pytest.raises(InvalidInputError, match="toy_walk takes a tuple of 2 tensors, got a tuple of 3 tensors"):
        relax((torch.zeros(3, 2),) * 3, Walk(), "map")
    with pytest.raises(InvalidInputError, match="toy_explicit takes one tensor, got a tuple of 2 tensors"):
        relax((torch.zeros(4),) * 2, Explicit(), "map")
    with pytest.raises(InvalidInputError, match="empty tuple"):
        relax((), Walk(), "map")


def test_wrong_event_shape():
    with pytest.raises(InvalidInputError, match=r"got \(3, 3\)"):
        relax((torch.zeros(3, 2), torch.zeros(3, 3)), Walk(), "map")
    with pytest.raises(InvalidInputError, match=r"\(.*3, 4\)"):
        relax(torch.zeros(3, 4), "arborescence", "map")
    with pytest.raises(InvalidInputError, match=r"transition .*\(4, 4\)"):
        relax((torch.zeros(5, 3), torch.zeros(4, 4)), "chain", "map")


def test_tensors_of_several_dtypes_or_devices():
    unary, transition = walk()
    with pytest.raises(InvalidInputError, match=r"same dtype, got torch.float64 and torch.float32"):
        relax((unary, transition.float()), Walk(), "map")
    with pytest.raises(InvalidInputError, match=r"same device, got cpu and meta"):
        relax((unary, transition.to("meta")), Walk(), "map")


def test_batches_that_do_not_agree():
    with pytest.raises(InvalidInputError, match=r"must broadcast, got shapes \(4, 3, 2\) and \(5, 2, 2\)"):
        relax(walk(4, transition=(5,)), Walk(), "map")
