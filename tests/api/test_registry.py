"""Names: registered at run time, looked up, and every way that this goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf import Oracle, PluginError, UnknownNameError
from structinf.calls import resolution
from toy_oracles import Explicit, Knapsack


@dataclass(frozen=True)
class Threshold(Oracle):
    """Every part that scores above a level."""

    level: float = 0.0
    event_ndim = 1

    def argmax(self, theta: Tensor) -> Tensor:
        return (theta > self.level).to(theta)


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards, names given to classes too."""
    for registry in (resolution.ORACLES, resolution.RELAXATIONS):
        monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(Threshold, "name", "", raising=False)


# ----------------------------------------------------------------------------- registered at run time


def test_a_decorator_and_a_call():
    assert si.register_oracle("threshold")(Threshold) is Threshold
    assert si.register_oracle("threshold_too", Threshold) is Threshold
    assert {"threshold", "threshold_too"} <= set(si.list_oracles())
    assert si.get_oracle("threshold", level=2.0) == Threshold(2.0)
    assert si.relax(torch.tensor([1.0, 3.0]), "threshold", "map", level=2.0).tolist() == [0, 1]
    assert si.relax(torch.tensor([1.0, 3.0]), "threshold", "sparsemap", level=-1.0).shape == (2,)


def test_a_class_is_called_by_its_first_name_in_messages():
    si.register_oracle("threshold", Threshold)
    with pytest.raises(TypeError, match=r"^threshold takes no instance data 'mask'"):
        Threshold().bind(mask=1)
    si.register_oracle("knapsack_again", Knapsack)
    assert Knapsack.name == "toy_knapsack"  # as the class has it


def test_a_function_makes_oracles_too():
    @si.register_oracle("strict")
    def make(*, level: float = 1.0, twice: bool = False) -> Oracle:
        return Threshold(2 * level if twice else level)

    assert si.get_oracle("strict", twice=True) == Threshold(2.0)
    assert si.relax(torch.tensor([1.5, 3.0]), "strict", "map", twice=True).tolist() == [0, 1]
    assert si.Layer("strict", "sparsemap", level=4.0).oracle == Threshold(4.0)
    with pytest.raises(TypeError, match=r"has no option 'lvel' \(it has: level, twice\); did you mean 'level'\?"):
        si.get_oracle("strict", lvel=1)


def test_a_relaxation_is_registered_alike():
    from structinf.relaxations.marginals import Marginals

    @si.register_relaxation("cool")
    def make() -> Marginals:
        return Marginals(temperature=0.1)

    assert "cool" in si.list_relaxations()
    assert si.get_relaxation("cool").temperature == 0.1
    theta = torch.randn(3, 4)
    assert torch.equal(
        si.relax(theta, "categorical", "cool"), si.relax(theta, "categorical", "marginals", temperature=0.1)
    )


def test_running_a_notebook_cell_again_replaces():
    def cell(sign: int) -> type:
        class Cell(Threshold):
            flipped: ClassVar[bool] = sign < 0

        return Cell

    si.register_oracle("cell", cell(1))
    si.register_oracle("cell", cell(-1))
    assert si.get_oracle("cell").flipped


def test_a_taken_name_names_both():
    si.register_oracle("threshold", Threshold)
    with pytest.raises(
        PluginError, match=r"'threshold' is taken by test_registry\.Threshold; register toy_oracles\.Explicit under"
    ):
        si.register_oracle("threshold", Explicit)
    assert isinstance(si.get_oracle("threshold"), Threshold)


def test_a_built_in_name_is_taken():
    with pytest.raises(PluginError) as error:
        si.register_oracle("chain", Threshold)
    message = str(error.value)
    assert "'chain' is taken by structinf_oracles.chain:Chain (distribution structinf " in message
    assert "register another name" in message
    assert isinstance(si.get_oracle("chain"), si.GibbsOracle)  # unharmed
    assert isinstance(si.relax(torch.zeros(2), Threshold(), "map"), Tensor)  # the object itself still works


def test_the_built_ins_own_classes_may_be_registered_again():
    si.register_oracle("categorical", type(si.get_oracle("categorical")))
    assert si.get_oracle("categorical") == type(si.get_oracle("categorical"))()


@pytest.mark.parametrize("name", [None, 3, "", "a b", "a-b", "a.b", "chain ", ("chain",), 1.5])
@pytest.mark.parametrize("register", [si.register_oracle, si.register_relaxation, si.register_estimator])
def test_a_name_is_a_word(register, name):
    kind = TypeError if not isinstance(name, str) else si.InvalidInputError
    for factory in (Threshold, None):
        with pytest.raises(kind, match=r"the name must be a word of letters, digits and underscores, got .*; choose"):
            register(name, factory)
    assert "chain" in si.list_oracles()
    assert "map" in si.list_relaxations()
    with pytest.raises(UnknownNameError, match="did you mean 'chain'"):
        si.get_oracle("chian")


@pytest.mark.parametrize("name", ["a", "A1", "_hidden", "naïve", "2opt"])
def test_words_are_names(name):
    si.register_oracle(name, Threshold)
    assert name in si.list_oracles()


def test_a_decorator_without_a_name():
    with pytest.raises(TypeError, match=r"the name is missing, got only the class test_registry\.Threshold; write "):
        si.register_oracle(Threshold)


@pytest.mark.parametrize("factory", [3, "Threshold", Threshold()])
def test_what_cannot_make_oracles_is_not_registered(factory):
    with pytest.raises(TypeError, match="register oracle 'odd': factory must be a class or function"):
        si.register_oracle("odd", factory)


def test_what_is_made_must_be_an_oracle():
    si.register_oracle("odd", lambda: "no oracle")
    with pytest.raises(PluginError, match="oracle 'odd' must construct an object of Oracle, got 'no oracle'"):
        si.get_oracle("odd")


# ----------------------------------------------------------------------------- looking up


def test_an_object_is_accepted_wherever_a_name_is():
    oracle = Threshold(0.5)
    assert si.get_oracle(oracle) is oracle
    relaxation = si.get_relaxation("map")
    assert si.get_relaxation(relaxation) is relaxation
    theta = torch.randn(2, 3)
    assert torch.equal(si.relax(theta, oracle, relaxation), si.relax(theta, oracle, "map"))


def test_objects_have_their_options_already():
    with pytest.raises(
        TypeError,
        match=r"options \['level'\] are accepted only with a name; .* Threshold\(level=0.5\)",
    ):
        si.get_oracle(Threshold(0.5), level=1.0)


@pytest.mark.parametrize("item", [None, 3, b"chain", torch.zeros(2)])
def test_neither_name_nor_object(item):
    with pytest.raises(TypeError, match="oracle must be a name or Oracle object"):
        si.get_oracle(item)


def test_a_class_instead_of_an_object():
    with pytest.raises(TypeError, match=r"call it first: Threshold\(\.\.\.\)"):
        si.get_oracle(Threshold)
    with pytest.raises(
        TypeError, match=r"relaxation must be a name or Relaxation object, got <class .*call it first: MAP\(\.\.\.\)"
    ):
        si.relax(torch.zeros(2), Threshold(), type(si.get_relaxation("map")))


def test_an_unknown_name_lists_close_and_known_ones():
    with pytest.raises(UnknownNameError) as error:
        si.get_oracle("arborescense")
    message = str(error.value)
    assert "no oracle is called 'arborescense'; did you mean 'arborescence'?" in message
    assert all(name in message for name in si.list_oracles())
    assert isinstance(error.value, LookupError)
    with pytest.raises(UnknownNameError, match=r"^no oracle is called 'zzz'\. Known: "):
        si.get_oracle("zzz")


def test_lists_are_sorted():
    assert si.list_oracles() == sorted(si.list_oracles())
    assert {"arborescence", "assignment", "categorical", "chain"} <= set(si.list_oracles())
    assert {"map", "marginals", "sparsemap"} <= set(si.list_relaxations())


def test_options_are_keyword_only_and_typed():
    with pytest.raises(TypeError, match=r"oracle 'arborescence' has no option 'root' \(it has: single_root\)"):
        si.get_oracle("arborescence", root=True)
    with pytest.raises(TypeError, match=r"relaxation 'map' has no option 'temperature' \(it has: none\)"):
        si.get_relaxation("map", temperature=1.0)


def test_an_option_that_both_have_must_go_to_one():
    @si.register_oracle("warm")
    @dataclass(frozen=True)
    class Warm(Threshold):
        temperature: float = 1.0

    with pytest.raises(
        TypeError, match="'temperature' is ambiguous, because both warm and sparsemap have it; set it in get_oracle"
    ):
        si.Layer("warm", "sparsemap", temperature=2.0)
    layer = si.Layer(si.get_oracle("warm", temperature=2.0), "sparsemap", temperature=3.0)
    assert (layer.oracle.temperature, layer.relaxation.temperature) == (2.0, 3.0)


def test_what_works_with_an_oracle_is_listed():
    summing = {name for name in si.list_relaxations() if si.get_relaxation(name).requires is not Oracle}
    graphs = {"belief_propagation", "mean_field", "lp_map", "lp_sparsemap"}
    categories = {"gapped_straight_through", "gumbel_rao"}
    assert {"marginals", "reinmax", "sinkhorn", "smoothed", "gumbel_crf", *graphs, *categories} == summing
    others = [name for name in si.list_relaxations() if name not in (*summing, "soft_subset")]
    assert resolution.works_with(Knapsack(3)) == others
    assert set(resolution.works_with(Explicit())) - set(resolution.works_with(Knapsack(3))) == {"marginals", "reinmax"}
    assert resolution.works_with(si.get_oracle("categorical")) == [
        name for name in si.list_relaxations() if name not in ("sinkhorn", "soft_subset", "gumbel_crf", *graphs)
    ]


def test_what_cannot_make_the_right_thing_is_refused():
    for register, wrong in [
        (si.register_oracle, int),
        (si.register_relaxation, Threshold),
        (si.register_estimator, si.get_estimator("exact")),
    ]:
        with pytest.raises(TypeError, match=r"factory must be a subclass of .* or a function that returns .*, got"):
            register("wrong", wrong)


def test_a_relaxation_that_makes_another_thing_is_not_offered():
    @si.register_relaxation("makes_another_thing")
    def make() -> Any:
        return 3

    assert "makes_another_thing" not in resolution.works_with(Explicit())


def test_a_relaxation_with_arguments_of_its_own_is_not_offered():
    @si.register_relaxation("needy")
    def make(noise: Any) -> Any:
        raise AssertionError

    assert "needy" not in resolution.works_with(Explicit())
    assert "needy" in si.list_relaxations()


def test_swapped_names_are_recognised():
    with pytest.raises(
        UnknownNameError, match=r"'marginals' is the name of the argument relaxation: pass the oracle first"
    ):
        si.relax(torch.zeros(2, 3), "marginals", "categorical")
    with pytest.raises(UnknownNameError, match=r"'chain' is the name of the argument oracle: pass the oracle first"):
        si.relax(torch.zeros(2, 3), "categorical", "chain")


def test_calls_by_name_share_an_object_that_nobody_can_change() -> None:
    assert si.get_oracle("chain") is si.get_oracle("chain")
    assert si.get_relaxation("map") is si.get_relaxation("map")
    assert si.get_oracle("subset", k=1) is not si.get_oracle("subset", k=1)
    assert si.get_relaxation("adaptive_imle") is not si.get_relaxation("adaptive_imle")  # it learns
    si.register_oracle("threshold", Threshold)
    assert si.get_oracle("threshold") is not si.get_oracle("threshold")  # a plugin may hold a state
