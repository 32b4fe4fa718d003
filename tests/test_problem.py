"""What the public calls do with what users pass: shapes, dtypes, batches, instance data, and every refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf import InfeasibleError, InvalidInputError, PluginError, UnsupportedError, relax
from structinf.oracle import as_tuple
from toys import Explicit, Knapsack, Walk

INF, NAN = torch.inf, torch.nan

RELAXATIONS = ["map", "marginals", "sparsemap"]
every_relaxation = pytest.mark.parametrize("relaxation", RELAXATIONS)


def walk(*batch: int, transition: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Potentials of a Walk of 3 steps and 2 states."""
    return torch.randn(*batch, 3, 2, dtype=dtype), torch.randn(*transition, 2, 2, dtype=dtype)


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


@every_relaxation
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
    with pytest.raises(TypeError, match=rf"^theta: floating-point potentials are needed, got {dtype}"):
        relax(torch.zeros(2, 4, dtype=dtype), Explicit(), "map")


@pytest.mark.parametrize("value", [[[1.0, 2.0, 3.0, 4.0]], None, 3.0, "chain"])
def test_what_is_no_tensor_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"^theta(\[0\])?: a tensor or a tuple of tensors is needed, got "):
        relax(value, Explicit(), "map")


def test_numpy_arrays_are_no_tensors():
    with pytest.raises(TypeError, match="got ndarray"):
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
    with pytest.raises(InvalidInputError, match=r"one dtype, got torch.float64 and torch.float32"):
        relax((unary, transition.float()), Walk(), "map")
    with pytest.raises(InvalidInputError, match=r"one device, got cpu and meta"):
        relax((unary, transition.to("meta")), Walk(), "map")


def test_batches_that_do_not_agree():
    with pytest.raises(InvalidInputError, match=r"batch dimensions of shapes \(4, 3, 2\) and \(5, 2, 2\) do not agree"):
        relax(walk(4, transition=(5,)), Walk(), "map")


# ----------------------------------------------------------------------------- batches


@every_relaxation
@pytest.mark.parametrize("batch", [(), (1,), (4,), (2, 3), (2, 1, 2), (0,), (3, 0)])
def test_batch_dimensions_of_any_number(relaxation, batch):
    theta = torch.randn(*batch, 4, dtype=torch.float64)
    mean = relax(theta, Explicit(), relaxation)
    assert mean.shape == theta.shape
    flat = relax(theta.reshape(-1, 4), Explicit(), relaxation)
    torch.testing.assert_close(mean.reshape(-1, 4), flat)


@every_relaxation
@pytest.mark.parametrize(
    ("unary", "transition"),
    [((), ()), ((4,), ()), ((4,), (1,)), ((), (4,)), ((1,), (4,)), ((2, 3), ()), ((2, 3), (1, 1)), ((2, 3), (2, 3))],
)
def test_shared_tensors(relaxation, unary, transition):
    theta = tuple(t.requires_grad_() for t in walk(*unary, transition=transition))
    whole = torch.broadcast_shapes(unary, transition)
    mean = relax(theta, Walk(), relaxation)
    assert [m.shape for m in mean] == [(*whole, 3, 2), (*whole, 2, 2)]
    # The same as every instance with tensors of its own, gradients summed.
    own = tuple(t.detach().expand(*whole, *t.shape[-2:]).clone().requires_grad_() for t in theta)
    expected = relax(own, Walk(), relaxation)
    torch.testing.assert_close(mean, expected)
    for found in (mean, expected):
        sum(m.square().sum() for m in found).backward()
    for t, o in zip(theta, own, strict=True):
        torch.testing.assert_close(t.grad, o.grad.sum_to_size(t.shape))


@every_relaxation
def test_an_empty_batch_has_a_gradient(relaxation):
    theta = torch.zeros(0, 4, requires_grad=True)
    relax(theta, Explicit(), relaxation).sum().backward()
    assert theta.grad.shape == (0, 4)
    shared = torch.zeros(2, 2, requires_grad=True)
    unary = torch.zeros(0, 3, 2)
    sum(m.sum() for m in relax((unary, shared), Walk(), relaxation)).backward()
    assert not shared.grad.any()


def test_lists_of_tensors_are_tuples():
    theta = walk(2)
    assert isinstance(relax(list(theta), Walk(), "map"), tuple)


# ----------------------------------------------------------------------------- dtypes


@every_relaxation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_in_is_dtype_out(relaxation, dtype):
    theta = torch.randn(3, 4).to(dtype).requires_grad_()
    solution = si.infer(theta, Explicit(), relaxation)
    assert solution.mean.dtype == solution.value.dtype == dtype
    solution.mean.square().sum().backward()
    assert theta.grad.dtype == dtype
    exact = relax(theta.detach().double(), Explicit(), relaxation)
    torch.testing.assert_close(solution.mean.double(), exact, atol=4 * torch.finfo(dtype).eps, rtol=0)


def test_half_precision_sums_in_float32():
    zeros = (torch.zeros(64, 16, dtype=torch.float16), torch.zeros(16, 16, dtype=torch.float16))
    value = si.infer(zeros, "chain", "marginals").value
    assert value.dtype == torch.float16
    assert value.item() == pytest.approx(64 * torch.tensor(16.0).log().item(), abs=0.25)
    trees = si.infer(
        torch.zeros(4, 4, dtype=torch.float16), si.get_oracle("arborescence", single_root=False), "marginals"
    )
    assert trees.value.item() == pytest.approx(torch.tensor(16.0).log().item(), abs=1e-2)


@every_relaxation
def test_autocast_does_not_lower_the_precision(relaxation):
    theta = torch.randn(3, 4, requires_grad=True)
    plain = relax(theta, "categorical", relaxation)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = relax(theta, "categorical", relaxation)
        linear = torch.nn.functional.linear(theta, torch.eye(4))  # bfloat16 here
        assert linear.dtype == torch.bfloat16
        assert relax(linear, "categorical", relaxation).dtype == torch.bfloat16
    assert inside.dtype == torch.float32
    assert torch.equal(inside, plain)


# ----------------------------------------------------------------------------- instance data


@every_relaxation
@pytest.mark.parametrize("form", [list, tuple, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)])
def test_lengths_in_any_form(relaxation, form):
    theta = walk(3)
    expected = relax(theta, Walk(), relaxation, lengths=torch.tensor([1, 3, 2]))
    torch.testing.assert_close(relax(theta, Walk(), relaxation, lengths=form([1, 3, 2])), expected)


def test_lengths_follow_the_batch_dimensions():
    theta = walk(2, 2)
    lengths = torch.tensor([[1, 2], [3, 1]])
    mean = relax(theta, Walk(), "map", lengths=lengths)
    assert mean[0].sum((2, 3)).tolist() == lengths.tolist()
    assert relax(theta, Walk(), "map", lengths=2)[0].sum((2, 3)).tolist() == [[2, 2], [2, 2]]
    assert relax(walk(), Walk(), "map", lengths=2)[0].sum() == 2
    assert relax(theta, Walk(), "map", lengths=[[1], [2]])[0].sum((2, 3)).tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([4, 1], r"lengths must lie between 1 and 3 \(T = 3 steps\), got 4 at batch index 0"),
        ([1, 0], r"lengths must lie between 1 and 3 .* got 0 at batch index 1"),
        ([1, -2], r"got -2 at batch index 1"),
        ([1, 2, 3], r"^lengths: the batch of theta has shape \(2,\), got lengths of shape \(3,\)"),
        ([[1, 2]], r"^lengths: .*\(2,\), got lengths of shape \(1, 2\)"),
        ([1.0, 2.0], r"^lengths: integers are needed, got torch.float32"),
        ([True, True], r"^lengths: integers are needed, got torch.bool"),
        ("long", r"^lengths: a tensor or a list of numbers is needed, got 'long'"),
    ],
)
def test_wrong_lengths(lengths, message):
    with pytest.raises(InvalidInputError, match=message):
        relax(walk(2), Walk(), "map", lengths=lengths)


def test_a_batch_given_time_first_is_noticed():
    unary, transition = walk(5)
    with pytest.raises(InvalidInputError, match=r"\(3,\), got lengths of shape \(5,\)"):
        relax((unary.transpose(0, 1), transition), Walk(), "map", lengths=[3] * 5)


def test_lengths_of_an_empty_batch():
    assert relax(walk(0), Walk(), "map", lengths=[])[0].shape == (0, 3, 2)


def test_instance_data_that_the_oracle_does_not_take():
    with pytest.raises(TypeError, match=r"no option 'mask' \(.*instance data: lengths\)"):
        relax(walk(2), Walk(), "map", mask=torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"toy_walk takes no instance data 'mask' \(it takes: lengths\)"):
        Walk().bind(mask=1)
    with pytest.raises(TypeError, match=r"takes no instance data 'mask' \(it takes: lengths\)"):
        si.Layer(Walk(), "map")(walk(2), mask=torch.ones(2, 3))
    assert relax(walk(2), Walk(), "map", lengths=None)[0].shape == (2, 3, 2)


@every_relaxation
def test_the_padding_is_never_read(relaxation):
    unary, transition = walk(2)
    expected = relax((unary, transition), Walk(), relaxation, lengths=[2, 1])
    unary[0, 2], unary[1, 1:] = NAN, INF
    unary.requires_grad_()
    mean = relax((unary, transition), Walk(), relaxation, lengths=[2, 1])
    torch.testing.assert_close(mean, expected)
    assert not mean[0][1, 1:].any()
    mean[0].square().sum().backward()
    assert unary.grad.isfinite().all()
    assert not unary.grad[1, 1:].any()


# ----------------------------------------------------------------------------- infeasible instances


@every_relaxation
def test_an_infeasible_instance_is_named(relaxation):
    theta = torch.zeros(2, 3, 4)
    theta[1, 1] = -INF
    with pytest.raises(InfeasibleError, match="batch index 4") as error:
        relax(theta, Explicit(), relaxation)
    assert error.value.batch_index == 4
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("relaxation", ["map", "sparsemap"])
@pytest.mark.parametrize("cost", [[[1, INF], [2, INF]], [[INF, INF], [INF, INF]]])
def test_no_assignment(relaxation, cost):
    with pytest.raises(InfeasibleError, match=r"no assignment .* batch index 0"):
        relax(-torch.tensor(cost), "assignment", relaxation)


@every_relaxation
def test_no_arborescence(relaxation):
    theta = torch.zeros(2, 4, 4)
    theta[1, 0] = -INF  # nothing hangs from the root
    with pytest.raises(InfeasibleError, match=r"arborescence .* batch index 1"):
        relax(theta, "arborescence", relaxation)


@every_relaxation
def test_no_path(relaxation):
    theta = torch.zeros(3, 2), torch.full((2, 2), -INF)
    with pytest.raises(InfeasibleError, match="batch index 0"):
        relax(theta, "chain", relaxation)


# ----------------------------------------------------------------------------- options and abilities


@pytest.mark.parametrize("make", [si.relax, si.infer])
def test_unknown_names_in_calls(make):
    with pytest.raises(
        si.UnknownNameError, match=r"no oracle is called 'chian'; did you mean 'chain'\?.* Known: .*chain"
    ):
        make(torch.zeros(2), "chian", "map")
    with pytest.raises(si.UnknownNameError, match=r"no relaxation is called 'marginal'; did you mean 'marginals'\?"):
        make(torch.zeros(2), "categorical", "marginal")


def test_options_that_do_not_exist():
    with pytest.raises(TypeError, match=r"no option 'temprature' .*did you mean 'temperature'\?"):
        relax(torch.zeros(2), "categorical", "marginals", temprature=2.0)
    with pytest.raises(TypeError, match=r"no option 'length' .*did you mean 'lengths'\?"):
        relax((torch.zeros(3, 2), torch.zeros(2, 2)), "chain", "map", length=[1])
    with pytest.raises(TypeError, match=r"Explicit.* has its own already"):
        relax(torch.zeros(4), Explicit(), "map", single_root=True)


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": -1.0}, {"temperature": NAN}, {"temperature": INF}]
)
@pytest.mark.parametrize("relaxation", ["marginals", "sparsemap"])
def test_values_that_an_option_cannot_have(relaxation, options):
    with pytest.raises(InvalidInputError, match="temperature must be a finite number above 0"):
        relax(torch.zeros(2), "categorical", relaxation, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("penalty", "some"), ("on_failure", "shrug"), ("tolerance", -1.0), ("tolerance", NAN), ("max_iter", 0)],
)
def test_values_that_sparsemap_cannot_have(option, value):
    with pytest.raises(InvalidInputError, match=rf"^{option} must be .*got {value!r}"):
        si.get_relaxation("sparsemap", **{option: value})


def test_options_reach_whichever_of_the_two_has_them():
    theta = torch.randn(3, 4, 4, dtype=torch.float64)
    mixed = relax(theta, "arborescence", "marginals", single_root=True, temperature=0.5)
    apart = relax(
        theta, si.get_oracle("arborescence", single_root=True), si.get_relaxation("marginals", temperature=0.5)
    )
    assert torch.equal(mixed, apart)


@pytest.mark.parametrize("make", [si.Layer, si.FenchelYoungLoss])
def test_what_an_oracle_cannot_do_is_said_when_the_layer_is_made(make):
    with pytest.raises(UnsupportedError) as error:
        make("assignment", "marginals")
    message = str(error.value)
    assert "#P-complete" in message
    assert "marginals does not work for assignment" in message
    assert message.endswith("These relaxations do: map, sparsemap")
    with pytest.raises(UnsupportedError, match=r"toy_knapsack lacks the ability GibbsOracle, the method log_partition"):
        make(Knapsack(3), "marginals")


# ----------------------------------------------------------------------------- the caller's tensors


@every_relaxation
def test_the_callers_tensors_are_left_alone(relaxation):
    leaf = torch.randn(4, dtype=torch.float64, requires_grad=True)
    plain = torch.randn(2, 4, dtype=torch.float64)
    for t, given in ((leaf, leaf[None]), (plain, plain)):
        before, version, needs = t.detach().clone(), t._version, t.requires_grad
        mean = relax(given, Explicit(), relaxation)
        if needs:
            mean.square().sum().backward()
        assert torch.equal(t, before)
        assert (t._version, t.requires_grad) == (version, needs)
        mean.detach().zero_()  # what comes back is the caller's to write into
        assert torch.equal(t, before)


@every_relaxation
def test_views_and_strides(relaxation):
    theta = torch.randn(4, 3, dtype=torch.float64)
    expected = relax(theta.T.contiguous(), Explicit(), relaxation)
    assert torch.equal(relax(theta.T, Explicit(), relaxation), expected)
    assert torch.equal(relax(theta.T.expand(2, 3, 4), Explicit(), relaxation)[1], expected)


# ----------------------------------------------------------------------------- plugins that break their protocol


@dataclass(frozen=True)
class Wrong(Knapsack):
    """A knapsack that answers in a wrong form."""

    how: str = ""
    name: ClassVar[str] = "wrong"

    def argmax(self, theta: Tensor) -> Any:
        y = super().argmax(theta)
        if self.how == "write":
            theta.zero_()
        return {
            "shape": y[:, 1:],
            "batch": y[:1],
            "dtype": y.half(),
            "device": y.to("meta"),
            "tuple": (y,),
            "list": y.tolist(),
            "write": y,
        }[self.how]


@pytest.mark.parametrize("how", ["shape", "batch", "dtype", "device", "tuple", "list", "write"])
def test_a_broken_argmax_is_noticed_at_run_time(how):
    with pytest.raises(PluginError, match=r"argmax of wrong breaks its protocol: .*check_oracle"):
        relax(torch.randn(2, 4), Wrong(3, how), "map")
    if how != "write":
        with pytest.raises(PluginError, match="wrong: "):
            relax(torch.randn(2, 4), Wrong(3, how), "sparsemap")


# ----------------------------------------------------------------------------- labels


def test_labels_and_structures():
    tags = torch.tensor([[0, 1, 1], [1, 0, -1]])
    theta = walk(2)
    y = si.encode(tags, theta, Walk(), lengths=[3, 2])
    assert [t.shape for t in as_tuple(y)] == [(2, 3, 2), (2, 2, 2)]
    assert si.decode(y, Walk(), lengths=[3, 2]).tolist() == tags.tolist()
    assert si.decode(relax(theta, Walk(), "map"), Walk()).shape == (2, 3)


def test_wrong_labels():
    with pytest.raises(
        InvalidInputError, match=r"^labels: integer labels of toy_walk .*\(2,\) and 1 more .*got shape \(3,\)"
    ):
        si.encode(torch.tensor([0, 1, 1]), walk(2), Walk())
    with pytest.raises(TypeError, match=r"^labels: integers are needed, got torch.float32"):
        si.encode(torch.zeros(2, 3), walk(2), Walk())
    with pytest.raises(InvalidInputError, match=r"tags must lie between 0 and 1 at batch index 0"):
        si.encode(torch.tensor([[7, 0, 0], [0, 0, 0]]), walk(2), Walk())
    with pytest.raises(UnsupportedError, match="toy_knapsack has no integer labels"):
        si.encode(torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 4), Knapsack(3))
    with pytest.raises(UnsupportedError, match="toy_knapsack has no integer labels"):
        si.decode(torch.zeros(2, 4), Knapsack(3))
