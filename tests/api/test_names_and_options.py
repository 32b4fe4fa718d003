"""Errors about names and options of calls, and about abilities that an oracle lacks."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from structinf import InvalidInputError, UnsupportedError, relax
from toy_oracles import Explicit, Knapsack

INF, NAN = torch.inf, torch.nan


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
