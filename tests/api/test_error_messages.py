"""Bad input: each error names the argument, its shape, the batch index and the remedy."""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import structinf as si
from structinf import InfeasibleError, InvalidInputError, PluginError, UnsupportedError, relax, simplex
from structinf.calls.resolution import get_oracle
from toy_oracles import Cube, Explicit, Knapsack, Walk, walk

INF, NAN = torch.inf, torch.nan

RELAXATIONS = ["map", "marginals", "sparsemap"]
every_relaxation = pytest.mark.parametrize("relaxation", RELAXATIONS)


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
    with pytest.raises(TypeError, match=rf"^theta must be real floating-point scores, got {dtype}"):
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


def _results(change: Any) -> si.Oracle:
    class Changed(Explicit):
        def argmax(self, theta: Any) -> Any:
            return change(super().argmax(theta))

    return Changed()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda y: y.long(), "dtype of its result is torch.int64, but must be torch.float"),
        (lambda y: y[:, :-1], r"shape of its result is \(2, 3\), but must be \(2, 4\)"),
        (lambda y: y.to_sparse(), "layout of its"),
    ],
)
def test_a_result_of_wrong_form_names_one_property(change, wrong):
    with pytest.raises(PluginError, match=f"protocol: the {wrong}"):
        relax(torch.randn(2, 4), _results(change), "map")


class _Listed(Explicit, si.Enumerable):
    def enumerate(self, event_shape: Any) -> Any:
        return torch.eye(4).tolist()


def test_enumerate_must_return_tensors():
    with pytest.raises(si.testing.CheckError, match=r"enumerate must return one tensor.*, got a list"):
        si.testing.check_oracle(_Listed(), event_shape=(4,))


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


# ----------------------------------------------------------------------------- instance data and labels


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([4, 1], r"lengths must lie between 1 and 3 \(T = 3 steps\), got 4 at batch index 0"),
        ([1, 0], r"lengths must lie between 1 and 3 .* got 0 at batch index 1"),
        ([1, -2], r"got -2 at batch index 1"),
        ([1, 2, 3], r"^lengths must have the batch shape of theta, \(2,\), got shape \(3,\)"),
        ([[1, 2]], r"^lengths must .*\(2,\), got shape \(1, 2\)"),
        ([1.0, 2.0], r"^lengths must be integers, got torch.float32"),
        ([True, True], r"^lengths must be integers, got torch.bool"),
        ("long", r"^lengths must be a tensor or a list of numbers, got 'long'"),
    ],
)
def test_wrong_lengths(lengths, message):
    with pytest.raises(InvalidInputError, match=message):
        relax(walk(2), Walk(), "map", lengths=lengths)


def test_a_batch_given_time_first_is_noticed():
    unary, transition = walk(5)
    with pytest.raises(InvalidInputError, match=r"\(3,\), got shape \(5,\)"):
        relax((unary.transpose(0, 1), transition), Walk(), "map", lengths=[3] * 5)


def test_instance_data_that_the_oracle_does_not_take():
    with pytest.raises(TypeError, match=r"no option 'mask' \(.*instance data: lengths\)"):
        relax(walk(2), Walk(), "map", mask=torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"toy_walk takes no instance data 'mask' \(it takes: lengths\)"):
        Walk().bind(mask=1)
    with pytest.raises(TypeError, match=r"no option 'mask' \(.*instance data: lengths\)"):
        si.Layer(Walk(), "map")(walk(2), mask=torch.ones(2, 3))
    assert relax(walk(2), Walk(), "map", lengths=None)[0].shape == (2, 3, 2)


def test_wrong_labels():
    with pytest.raises(
        InvalidInputError, match=r"^labels: integer labels of toy_walk .*\(2,\) and 1 more .*got shape \(3,\)"
    ):
        si.encode(torch.tensor([0, 1, 1]), walk(2), Walk())
    with pytest.raises(TypeError, match=r"^labels must be a tensor of integers, got a tensor of torch.float32"):
        si.encode(torch.zeros(2, 3), walk(2), Walk())
    with pytest.raises(InvalidInputError, match=r"tags must lie between 0 and 1 at batch index 0"):
        si.encode(torch.tensor([[7, 0, 0], [0, 0, 0]]), walk(2), Walk())
    with pytest.raises(UnsupportedError, match="toy_knapsack has no integer labels"):
        si.encode(torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 4), Knapsack(3))
    with pytest.raises(UnsupportedError, match="toy_knapsack has no integer labels"):
        si.decode(torch.zeros(2, 4), Knapsack(3))


# ----------------------------------------------------------------------------- infeasible instances


@every_relaxation
def test_an_infeasible_instance_is_named(relaxation):
    theta = torch.zeros(2, 3, 4)
    theta[1, 1] = -INF
    with pytest.raises(InfeasibleError, match=r"batch index 4\b.*\(2, 3\) its index is \(1, 1\); on_inf") as error:
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


@every_relaxation
def test_all_infeasible_instances_are_named(relaxation):
    theta = torch.zeros(2, 3, 4)
    theta[0, 2] = theta[1, 0] = theta[1, 2] = -INF
    with pytest.raises(
        InfeasibleError,
        match=r"for batch index 2, 3 and 5: too many of their parts .* drop the instances; in the batch of "
        r"shape \(2, 3\) their indices are \(0, 2\), \(1, 0\), \(1, 2\); on_infeasible=.zero. leaves out",
    ) as error:
        relax(theta, "categorical", relaxation)
    assert (error.value.batch_index, error.value.batch_indices) == (2, (2, 3, 5))
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.batch_index, again.batch_indices) == (str(error.value), 2, (2, 3, 5))


def test_ten_of_many_infeasible_instances_are_named():
    theta = torch.full((50, 3, 3), -INF)
    theta[0] = 0
    with pytest.raises(InfeasibleError, match="for batch index 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 39 more: ") as error:
        relax(theta, "assignment", "map")
    assert error.value.batch_indices == tuple(range(1, 50))
    with pytest.raises(InfeasibleError, match=r"their indices are \(0, 1\), .*\(1, 0\) and 39 more; on_inf"):
        relax(theta.view(5, 10, 3, 3), "assignment", "map")


@pytest.mark.parametrize(
    ("oracle", "options"),
    [
        ("path", {"graph": [(0, 1), (1, 2)], "source": 0, "target": 2}),
        ("matching", {"edges": [(0, 1), (2, 3)], "perfect": True}),
        ("flow", {"graph": [(0, 1), (1, 2)], "supplies": [1, 0, -1]}),
        ("dag_path", {"graph": [(0, 1), (1, 2)]}),
        ("transportation", {"supplies": [1], "demands": [0, 1]}),
        ("spanning_tree", {"edges": [(0, 1), (1, 2)]}),
    ],
)
def test_solvers_of_graphs_name_all_infeasible_instances(oracle, options):
    theta = torch.full((4, 2), -INF)
    theta[1:3] = 0
    with pytest.raises(InfeasibleError, match="batch index 0 and 3") as error:
        relax(theta.unsqueeze(1) if oracle == "transportation" else theta, oracle, "map", **options)
    assert error.value.batch_indices == (0, 3)


def test_all_instances_without_a_bound_are_named():
    graph = [(0, 1), (1, 0)]
    with pytest.raises(si.UnboundedError, match="batch index 0 and 2, as") as error:
        relax(torch.tensor([[1.0, 1], [-1, 0], [3, 0]]), "flow", "map", graph=graph, supplies={}, capacities=INF)
    assert error.value.batch_indices == (0, 2)


# ----------------------------------------------------------------------------- options and abilities


@pytest.mark.parametrize("make", [si.relax, si.infer])
def test_unknown_names_in_calls(make):
    with pytest.raises(
        si.UnknownNameError, match=r"no oracle is called 'chian'; did you mean 'chain' or .* Known: .*chain"
    ):
        make(torch.zeros(2), "chian", "map")
    with pytest.raises(si.UnknownNameError, match=r"no relaxation is called 'marginal'; did you mean 'marginals'\?"):
        make(torch.zeros(2), "categorical", "marginal")


def test_options_that_do_not_exist():
    with pytest.raises(TypeError, match=r"no option 'temprature' .*did you mean 'temperature'\?"):
        relax(torch.zeros(2), "categorical", "marginals", temprature=2.0)
    with pytest.raises(TypeError, match=r"no option 'length' .*did you mean 'lengths'\?"):
        relax((torch.zeros(3, 2), torch.zeros(2, 2)), "chain", "map", length=[1])
    with pytest.raises(TypeError, match=r"Explicit.* takes options in its constructor"):
        relax(torch.zeros(4), Explicit(), "map", single_root=True)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"temperature": -1.0}, {"temperature": NAN}, {"temperature": INF}, {"temperature": True}],
)
@pytest.mark.parametrize("relaxation", ["marginals", "sparsemap", "smoothed"])
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


@pytest.mark.parametrize("relaxation", ["mean_field", "belief_propagation"])
@pytest.mark.parametrize("temperature", [torch.tensor(1.0), torch.nn.Parameter(torch.ones(())), "1"])
def test_temperatures_are_numbers(relaxation, temperature):
    with pytest.raises(InvalidInputError, match=r"^temperature must be .* divide the scores by a learned temperature"):
        si.Layer("categorical", relaxation, temperature=temperature)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_whether_is_true_or_false(value):
    with pytest.raises(InvalidInputError, match=rf"^labelled must be True or False, got {value!r}"):
        si.get_oracle("binary_tree", labelled=value)


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
    kind = si.RegularizedRelaxation if make is si.FenchelYoungLoss else si.Relaxation
    oracle = si.get_oracle("assignment")
    working = [name for name in si.list_relaxations() if si.get_relaxation(name).unsupported_reason(oracle) is None]
    others = [name for name in working if isinstance(si.get_relaxation(name), kind)]
    assert message.endswith(f"Supported relaxations: {', '.join(others)}")
    with pytest.raises(UnsupportedError, match=r"toy_knapsack lacks the ability GibbsOracle, the method log_partition"):
        make(Knapsack(3), "marginals")


def test_what_an_option_needs_is_said_with_the_option() -> None:
    with pytest.raises(UnsupportedError, match="its backward pass uses marginals, and assignment lacks"):
        si.Layer("assignment", "straight_through", backward="marginals")
    with pytest.raises(UnsupportedError, match='variant="cross_entropy" needs marginals, and assignment lacks'):
        si.Layer("assignment", "spigot", variant="cross_entropy")


@pytest.mark.parametrize("start", [3, "solution", torch.zeros(2, 4), (torch.zeros(1, 2, 4),)])
def test_a_warm_start_is_a_solution(start):
    with pytest.raises(
        TypeError, match=r"^warm_start must be a Solution, .*, got (int|str|Tensor|tuple); pass the result"
    ):
        si.infer(torch.zeros(2, 4), "categorical", "sparsemap", warm_start=start)


@pytest.mark.parametrize(
    ("value", "message"), [(-1.0, "got -1.0$"), ("1", "got '1'; pass a Python number"), (0, "got 0")]
)
def test_an_initial_temperature_is_called_so(value, message):
    with pytest.raises(InvalidInputError, match=rf"^initial_temperature must be a finite number above 0, {message}"):
        si.get_relaxation("sinkhorn", initial_temperature=value)


@pytest.mark.parametrize("value", [3, None, "no_such", torch.zeros(2)])
def test_an_inner_relaxation_is_called_by_its_option(value):
    for name, option in [("stochastic", "base_relaxation"), ("straight_through", "backward")]:
        with pytest.raises(
            (TypeError, si.UnknownNameError), match=rf"^{option}: (relaxation must be a name|no relaxation)"
        ):
            si.get_relaxation(name, **{option: value})


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
    with pytest.raises(PluginError, match=r"argmax of wrong violates its protocol: .*check_oracle"):
        relax(torch.randn(2, 4), Wrong(3, how), "map")
    if how != "write":
        with pytest.raises(PluginError, match="argmax of wrong violates its protocol"):
            relax(torch.randn(2, 4), Wrong(3, how), "sparsemap")


@pytest.mark.parametrize("sparse", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_results_are_refused(sparse):
    class Sparse(Explicit):
        def argmax(self, theta):
            return sparse(super().argmax(theta))

        def log_partition(self, theta):
            return super().log_partition(theta).to_sparse()

        def sample(self, theta, n, generator=None):
            return super().sample(theta, n, generator).to_sparse()

        def topk(self, theta, k):
            structures, scores, valid = super().topk(theta, k)
            return structures.to_sparse(), scores, valid

    class SparseCube(Cube):
        def project(self, theta):
            return sparse(super().project(theta))

    theta = torch.randn(2, 4)
    for relaxation in ("map", "sparsemap", "perturbed"):
        with pytest.raises(PluginError, match=r"argmax of \w+ violates its protocol: .*sparse"):
            relax(theta, Sparse(), relaxation)
    queries = [
        lambda: si.log_partition(theta, Sparse()),
        lambda: si.sample(theta, Sparse(), 3),
        lambda: si.topk(theta, Sparse(), 2),
        lambda: relax(theta, SparseCube(), "sparsemap"),
    ]
    for query in queries:
        with pytest.raises(
            PluginError, match=r"a method of \w+ returned a tensor of layout torch.sparse_\w+, .*to_dense"
        ):
            query()


@dataclass(frozen=True)
class Marked(Explicit):
    """An oracle whose argmax is NaN for the instances marked by 7, from the second call on."""

    name: ClassVar[str] = "marked"
    instance_ndim: ClassVar = {"mark": 0}
    calls: ClassVar[list[int]] = []

    def argmax(self, theta: Tensor) -> Tensor:
        self.calls.append(len(theta))
        y = super().argmax(theta)
        return torch.where((self.bound["mark"] == 7)[:, None] & (len(self.calls) > 1), NAN, y)


@pytest.mark.parametrize("relaxation", ["sparsemap", "frank_wolfe"])
def test_errors_in_later_rounds_name_the_instance_of_the_batch(relaxation):
    theta = torch.zeros(5, 4, dtype=torch.float64)
    theta[:3] += 1000 * torch.tensor([1.0, 0, 0, 1])  # these instances end in the first round
    theta[3:] += torch.tensor([0.1, 0.2, 0.3, 0.1])
    Marked.calls.clear()
    with pytest.raises(PluginError, match=r"\bbatch index 4\b"):
        si.infer(theta, Marked(), relaxation, mark=[0, 0, 0, 0, 7])
    assert len(Marked.calls) > 1


def test_the_active_set_behind_a_direct_solver_names_the_instance_of_the_batch(monkeypatch):
    from structinf.relaxations import sparsemap as module
    from structinf.solvers.direct_mean import DirectMean

    def stops_early(oracle: Any, theta: Tensor, **_: Any) -> DirectMean:
        converged = torch.arange(len(theta)) < 3
        zero = theta.new_zeros(len(theta))
        return DirectMean(torch.zeros_like(theta), zero, zero, converged, lambda v: v)

    kind = type(si.get_oracle("assignment"))

    def argmax(self: Any, theta: Tensor) -> Tensor:
        raise PluginError(f"out of order for batch index {len(theta) - 1}, 0 and 1 more")

    monkeypatch.setattr(module, "project_transport", stops_early)
    monkeypatch.setattr(kind, "argmax", argmax)
    with pytest.raises(PluginError, match=r"^out of order for batch index 4, 3 and 1 more$"):
        relax(torch.randn(5, 3, 3), "assignment", "sparsemap")


def test_instances_of_a_selection_are_renumbered():
    for message, expected in [
        ("no path for batch index 1", "no path for batch index 9"),
        ("no path for batch index 0, 1, 2 and 30 more", "no path for batch index 8, 9, 11 and 30 more"),
        ("no path of 2 edges, 1 of 2", "no path of 2 edges, 1 of 2 (batch index 8)"),
        ("batch index 5", "batch index 5"),
    ]:
        error = InfeasibleError(message, 0, [0, 1, 2])
        with pytest.raises(InfeasibleError) as found, si.errors.renumber_instances(torch.tensor([8, 9, 11])):
            raise error
        assert str(found.value) == expected
        assert (found.value.batch_index, found.value.batch_indices) == (8, (8, 9, 11))


@pytest.mark.parametrize("relaxation", ["sparsemap", "frank_wolfe", "perturbed"])
def test_warnings_of_solvers_name_instances_of_the_whole_batch(relaxation):
    numbers = []

    class Limited(si.Oracle):
        event_ndim = 1
        instance_ndim: ClassVar = {"number": 0}

        def argmax(self, theta):
            numbers.append(self.bound["number"][-1].item())
            si.errors.warn_user(f"stopped at batch index {len(theta) - 1}", si.ConvergenceWarning)
            return (theta > 0).to(theta)

    theta = torch.tensor([[0.1, 0.2], [9.0, -9.0], [0.3, 0.4], [9.0, 9.0]])
    with pytest.warns(si.ConvergenceWarning) as found:
        relax(theta, Limited(), relaxation, number=[0, 1, 2, 3])
    named = [str(w.message) for w in found if "stopped at" in str(w.message)]
    assert named == [f"stopped at batch index {number}" for number in numbers]
    assert relaxation == "perturbed" or len(set(numbers)) > 1


# ----------------------------------------------------------------------------- what plugins leave undone


def test_an_option_that_is_needed():
    si.register_oracle("toy_capacity", Knapsack)
    with pytest.raises(TypeError, match=r"^oracle 'toy_capacity' needs the option 'capacity': pass capacity=\.\.\.$"):
        relax(torch.zeros(2, 4), "toy_capacity", "map")


def test_instance_data_that_the_oracle_reads_but_nobody_gave():
    class Reads(Explicit):
        instance_ndim: ClassVar = {"mask": 1}

        def argmax(self, theta):
            return super().argmax(theta * self.bound["mask"])

    with pytest.raises(InvalidInputError, match=r"^mask: the oracle needs this instance data; pass mask=\.\.\."):
        relax(torch.zeros(2, 4), Reads(), "map")


def test_second_derivatives_of_nan_name_the_method():
    class Pairs(Explicit):
        def log_partition(self, theta):
            a, b, c, d = theta.unbind(1)
            return torch.logaddexp(torch.logaddexp(a, b), torch.logaddexp(c, d))

        log_partition_and_marginals = si.GibbsOracle.log_partition_and_marginals
        marginals = si.GibbsOracle.marginals
        covariance_product = si.GibbsOracle.covariance_product

    theta = torch.zeros(3, 4, dtype=torch.float64)
    theta[1, :2] = -INF
    theta.requires_grad_()
    mean = relax(theta, Pairs(), "marginals")
    message = (
        r"^log_partition of \w+ has a second derivative of NaN at batch index 1: torch.logaddexp .*covariance_product$"
    )
    with pytest.raises(PluginError, match=message):
        mean.square().sum().backward()


@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap", "frank_wolfe"])
def test_a_printed_solution_shows_its_support(relaxation):
    solution = si.infer(torch.tensor([[0.5, 0.25, 0.0]]), "categorical", relaxation)
    text = repr(solution)
    assert text.startswith("Solution(mean=tensor([[")
    assert ("support=tensor([[[" in text) == (solution.support is not None)
    assert "make_support" not in text
    assert "None" not in text
    large = si.infer(torch.zeros(2000, 60), "categorical", "map")
    assert "mean=<tensor of shape (2000, 60), torch.float32>" in repr(large)
    assert repr(large).endswith(", support=...)")
    assert "support" not in vars(large)


def test_an_oracle_without_event_ndim():
    class Bare(si.Oracle):
        def argmax(self, theta):
            return theta

    with pytest.raises(PluginError, match="Bare must define event_ndim"):
        relax(torch.zeros(2, 4), Bare(), "map")


@pytest.mark.parametrize("relaxation", ["map", "sparsemap", "perturbed", "blackbox", "imle", "stochastic"])
def test_an_argmax_that_does_not_notice_infeasibility(relaxation):
    class Blind(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            return torch.nn.functional.one_hot(theta.argmax(-1), theta.shape[-1]).to(theta)

    theta = torch.zeros(3, 4)
    theta[1] = -torch.inf
    with pytest.raises((InfeasibleError, PluginError), match="batch index 1"):
        relax(theta, Blind(), relaxation)


def test_gold_that_beats_the_best_structure():
    theta = torch.ones(2, 4)
    with pytest.raises(InvalidInputError, match=r"^y is not a structure of toy_explicit at batch index 0"):
        si.FenchelYoungLoss(Explicit(), "map")(theta, torch.ones(2, 4))


def test_infeasible_errors_name_the_batch_index():
    assert str(InfeasibleError("no path", 3)) == "no path (batch index 3)"
    assert str(InfeasibleError("no path for batch index 3", 3)) == "no path for batch index 3"


def test_errors_of_direct_calls_name_the_argument():
    trees, square = get_oracle("arborescence"), torch.zeros(4, 4)
    with pytest.raises(InvalidInputError, match=r"^y: methods of arborescence take 3 dimensions"):
        trees.decode(square)
    with pytest.raises(InvalidInputError, match=r"^like: methods of arborescence take 3 dimensions"):
        trees.encode(torch.tensor([[0, 1, 1]]), square)
    with pytest.raises(InvalidInputError, match=r"^event_shape: "):
        trees.enumerate((4,))
    with pytest.raises(InvalidInputError, match=r"^event_shape must be .*, got 4; write \(4,\) for structures of one"):
        cast(Any, trees).enumerate(4)


class FirstPart(si.Oracle):
    event_ndim = 1

    def argmax(self, theta):
        return torch.nn.functional.one_hot(theta.argmax(-1), theta.shape[-1]).to(theta)


def _crossing_factors() -> si.FactorGraph:
    graph = si.FactorGraph(4)
    graph.add("xor", [0, 1])
    graph.add("xor", [1, 2])
    return graph


def _two_chains(**options: Any) -> si.FactorGraph:
    graph = si.FactorGraph((4, 3))
    for _ in range(2):
        graph.add("chain", graph.variables, additional=[(3, 3)], **options)
    return graph


_SERIES, _TAGS = torch.zeros(4), (torch.zeros(1, 4, 3), torch.zeros(3, 3))
_GOLD = torch.zeros(1, 4, dtype=torch.int64)
_ONE_HOT = torch.nn.functional.one_hot(_GOLD, 3)
_CHAIN_LOSS: Any = si.FenchelYoungLoss("chain", "map")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: relax(_SERIES, lambda theta: theta, "map"), TypeError, "structinf.oracle_from_function"),
        (lambda: si.decode_greedy("shift_reduce", _SERIES), TypeError, "got 'shift_reduce'; pass an object"),
        (lambda: si.decode_greedy(si.transitions.ShiftReduce, _SERIES), TypeError, r"it first: ShiftReduce\(\.\.\.\)"),
        (lambda: si.soft_dtw(_SERIES, _SERIES), InvalidInputError, r"shape \(4,\); .* structinf.pairwise_cost\(x, y\)"),
        (lambda: relax(_TAGS[0], "chain", "map"), InvalidInputError, r"need a tuple \(unary, transition\)$"),
        (lambda: cast(Any, si.Layer("chain"))(*_TAGS), TypeError, r"^Layer.forward\(\) .* tuple, layer\(\(u, t\)\), "),
        (
            lambda: cast(Any, si.Layer("chain")).infer(*_TAGS),
            TypeError,
            r"a tuple, layer.infer\(\(u, t\)\), and instance",
        ),
        (lambda: cast(Any, si.Layer("chain"))(_TAGS, [4]), TypeError, r"instance data by name, such as lengths=\.\.\."),
        (lambda: _CHAIN_LOSS(*_TAGS, _GOLD), TypeError, r"^FenchelYoungLoss.forward\(\) .* loss\(\(u, t\), y\), "),
        (lambda: _CHAIN_LOSS(*_TAGS, y=_GOLD), TypeError, r"a tuple, loss\(\(u, t\), y\), "),
        (lambda: cast(Any, si).SPOPlusLoss("chain")(*_TAGS, _TAGS), TypeError, r"loss\(\(u, t\), true_theta\), "),
        (lambda: cast(Any, relax)(*_TAGS, "chain", "map"), TypeError, r"relax\(\(u, t\), oracle, relaxation\), "),
        (
            lambda: cast(Any, relax)(*_TAGS, "chain"),
            TypeError,
            r"^oracle .* got a Tensor; .* several tensors as a tuple",
        ),
        (lambda: cast(Any, relax)(*_TAGS, "chain", lengths=[4]), TypeError, r"^oracle .* got a Tensor; .* as a tuple"),
        (lambda: cast(Any, si.Gibbs)(*_TAGS, "chain"), TypeError, r"a tuple, Gibbs\(\(u, t\), oracle\), "),
        (lambda: cast(Any, si.decode)(*_TAGS, "chain"), TypeError, r"tensors of y .* decode\(\(u, t\), oracle\), "),
        (lambda: _CHAIN_LOSS(_TAGS, _ONE_HOT), InvalidInputError, r"labels of one-hot vectors: y\.argmax\(-1\)$"),
        (lambda: _CHAIN_LOSS(_TAGS, _ONE_HOT.float()), InvalidInputError, r"1 more dimension: y\.argmax\(-1\)$"),
        (lambda: si.encode(_ONE_HOT, _TAGS, "chain"), InvalidInputError, r"one-hot vectors: labels\.argmax\(-1\)$"),
        (
            lambda: si.FenchelYoungLoss("assignment", "map")(torch.zeros(2, 2), torch.eye(2).long()),
            InvalidInputError,
            r"pass a structure in floating point: y\.to\(theta\.dtype\)$",
        ),
        (
            lambda: si.FenchelYoungLoss("semi_markov", "map")(torch.zeros(1, 4, 3, 2), _GOLD),
            InvalidInputError,
            r"number of steps \(1 to D\), label\], .* floating point has the form of theta, \(1, 4, 3, 2\)$",
        ),
        (
            lambda: relax((*_TAGS, _TAGS[1]), _two_chains(), "map", lengths=[4]),
            TypeError,
            r"; factor 0 \(chain\) takes lengths after graph\.add\(\.\.\., instance_data=\['lengths'\]\)$",
        ),
        (lambda: _two_chains().bind(lengths=torch.tensor([4])), TypeError, r"; factor 0 \(chain\) takes lengths after"),
        (
            lambda: relax(_TAGS, _two_chains(), "map"),
            InvalidInputError,
            r"the shapes are \(4, 3\) for the variables, \(3, 3\) for factor 0 \(chain\), \(3, 3\) for factor 1 ",
        ),
        (
            lambda: relax((*_TAGS, torch.zeros(4, 4)), _two_chains(), "map"),
            InvalidInputError,
            r"^theta\[2\]: the scores for factor 1 \(chain\) must have shape \(3, 3\), got \(4, 4\)",
        ),
        (
            lambda: si.FenchelYoungLoss(_two_chains(), "map")((*_TAGS, _TAGS[1]), _GOLD),
            InvalidInputError,
            r"labels of factor_graph are the values of the variables, 0 or 1, of shape \(4, 3\), and",
        ),
        (
            lambda: si.FenchelYoungLoss("chain", "map")(_TAGS, torch.full((1, 4), -100)),
            InvalidInputError,
            "position 0; pass lengths=... to ignore the padding",
        ),
        (
            lambda: si.FenchelYoungLoss("chain", "map")(_TAGS, torch.zeros(1, 4, 3)),
            InvalidInputError,
            "must have the form of theta, a tuple of 2 tensors, got a tensor",
        ),
        (
            lambda: relax(_SERIES, "path", "map", graph=[[(0, 1), (1, 2), (0, 2)], [(0, 1)]]),
            InvalidInputError,
            r"structinf.GraphBatch.of\(graphs\)",
        ),
        (lambda: si.topk(_SERIES, FirstPart(), 2), UnsupportedError, "may have restricted_argmax instead"),
        (lambda: si.sample(_SERIES, FirstPart(), 2), UnsupportedError, 'structinf.infer with "perturbed"'),
        (
            lambda: si.infer(_SERIES, _crossing_factors(), "mean_field"),
            UnsupportedError,
            r"factor 0, xor of .* and factor 1, xor of .* share variable 1, .* use belief_propagation",
        ),
        (
            lambda: si.FactorGraph((6, 3)).add("chain", torch.arange(18).view(6, 3)),
            InvalidInputError,
            r"got 2; pass the shape of the transitions between the 3 states: additional=\[\(3, 3\)\]",
        ),
        (
            lambda: si.FactorGraph((4, 3)).add("assignment", torch.arange(3)),
            InvalidInputError,
            "takes scores with 2 dimensions, got 1; pass the variables in the shape of the first tensor",
        ),
        (
            lambda: si.expect(lambda y: (y * _SERIES[:2, None]).sum(1), torch.zeros(2, 3), "subset", "exact", k=1),
            InvalidInputError,
            r"for the 6 structures of 2 instances: .*; if f reads a tensor of the batch, pass the tensor as inputs=",
        ),
        (lambda: si.FactorGraph(4).add("one", [0, 1]), si.UnknownNameError, "Other factors: xor, or, "),
        (lambda: si.FactorGraph(4).add("budgett", [0, 1]), si.UnknownNameError, "did you mean 'budget'"),
        (
            lambda: si.topk(torch.zeros(4), "subset", k=2),
            InvalidInputError,
            r"topk\(theta, get_oracle\('subset', k=...\), k",
        ),
        (lambda: cast(Any, si).span_f1, AttributeError, "'span_f1'; use structinf.metrics.span_f1$"),
        (lambda: cast(Any, si).SparseMAP, AttributeError, "'SparseMAP'$"),
        (
            lambda: relax(_SERIES, "alignment", "map"),
            si.UnknownNameError,
            "mean 'dtw' or 'monotonic_alignment' or 'need",
        ),
    ],
)
def test_frequent_mistakes_get_a_remedy(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
