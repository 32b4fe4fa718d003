"""The relaxation `frank_wolfe` through the public calls: closed forms, derivatives, options, what is refused."""

from __future__ import annotations

import dataclasses
import pickle
import warnings

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from active_set_problems import Listed, assignments
from frank_wolfe_reference import VARIANTS, cubic, draw, own_entropy, quadratic
from structinf import (
    ConvergenceError,
    ConvergenceWarning,
    EntropyProjectable,
    FenchelYoungLoss,
    InvalidInputError,
    Layer,
    UnsupportedError,
    get_oracle,
    get_relaxation,
    infer,
    relax,
)
from structinf.testing import check_relaxation

pytestmark = pytest.mark.slow

NAMES = ("squared_l2", "entropy", "binary_entropy")
named = pytest.mark.parametrize("omega", NAMES)
QUADRATIC = {width: quadratic(width) for width in (9, 16)}
OMEGAS = {
    **{name: name for name in NAMES},
    "quadratic": lambda mean: QUADRATIC[mean[0].numel()](mean),
    "cubic": cubic,
    "own_entropy": own_entropy,
}
every_omega = pytest.mark.parametrize("omega", OMEGAS)
TREES = get_oracle("arborescence"), (2, 4, 4)


# ----------------------------------------------------------------------------- values


def test_squared_l2_is_sparsemap():
    theta = draw(0, 4, 5, 5)
    mine, theirs = (infer(theta, "assignment", name, tolerance=0) for name in ("frank_wolfe", "sparsemap"))
    for name in ("mean", "value", "weights", "gap", "support"):
        torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), atol=0, rtol=0)


@named
@pytest.mark.parametrize(("name", "options"), [("categorical", {}), ("bits", {}), ("subset", {"k": 2})])
def test_closed_forms_agree_with_frank_wolfe(name, options, omega):
    oracle = get_oracle(name, **options)
    assert isinstance(oracle, EntropyProjectable)
    theta = draw(1, 3, 5)
    theta[0, 1] = -torch.inf
    closed, searched = (
        infer(theta, oracle, "frank_wolfe", regularizer=omega, temperature=0.6, closed_form=form)
        for form in (True, False)
    )
    torch.testing.assert_close(closed.mean, searched.mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(closed.value, searched.value, atol=1e-11, rtol=0)
    assert closed.converged.all()
    if omega != "squared_l2":
        assert closed.support is None


def test_entropies_of_one_choice_are_softmax_and_of_independent_ones_sigmoid():
    theta = draw(2, 3, 4)
    one = relax(theta, "categorical", "frank_wolfe", regularizer="entropy", temperature=0.5, closed_form=False)
    torch.testing.assert_close(one, (2 * theta).softmax(1))
    each = relax(theta, "bits", "frank_wolfe", regularizer="binary_entropy", temperature=0.5, closed_form=False)
    torch.testing.assert_close(each, (2 * theta).sigmoid())


def test_entropy_of_an_assignment_is_sinkhorns_limit():
    theta = draw(3, 2, 4, 4)
    plan = theta.clone()
    for _ in range(2000):
        plan = plan - plan.logsumexp(1, keepdim=True)
        plan = plan - plan.logsumexp(2, keepdim=True)
    torch.testing.assert_close(relax(theta, "assignment", "frank_wolfe", regularizer="entropy"), plan.exp())


@every_omega
def test_temperature_scales_omega(omega):
    theta = draw(4, 2, 3, 3)
    warm = infer(theta, "assignment", "frank_wolfe", regularizer=OMEGAS[omega], temperature=0.25)
    cold = infer(4 * theta, "assignment", "frank_wolfe", regularizer=OMEGAS[omega])
    torch.testing.assert_close(warm.mean, cold.mean)
    torch.testing.assert_close(warm.value, cold.value / 4)


def test_shared_tensors_of_a_tuple():
    theta = draw(5, 3, 4, 2), draw(6, 2, 2)
    together = relax(theta, "chain", "frank_wolfe", regularizer="entropy")
    apart = relax((theta[0], theta[1].expand(3, 2, 2)), "chain", "frank_wolfe", regularizer="entropy")
    for a, b in zip(together, apart, strict=True):
        torch.testing.assert_close(a, b)


def test_lengths_and_float32():
    theta = draw(7, 3, 5, 5)
    lengths = torch.tensor([4, 2, 1])
    double = relax(theta, "arborescence", "frank_wolfe", regularizer="entropy", lengths=lengths)
    single = relax(theta.float(), "arborescence", "frank_wolfe", regularizer="entropy", lengths=lengths)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, atol=1e-6, rtol=0)
    assert not double[1, 3:].any()


# ----------------------------------------------------------------------------- derivatives


@pytest.mark.matrix
@every_omega
@pytest.mark.parametrize("backward", ["implicit", "central_differences"])
def test_gradcheck(omega, backward):
    layer = Layer("assignment", "frank_wolfe", regularizer=OMEGAS[omega], temperature=0.7, backward=backward)
    assert gradcheck(layer, draw(8, 2, 3, 3).requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("omega", ["entropy", "binary_entropy"])
def test_gradcheck_of_trees(omega):
    oracle, shape = TREES
    assert gradcheck(Layer(oracle, "frank_wolfe", regularizer=omega), draw(9, *shape).requires_grad_(), fast_mode=True)


@every_omega
@pytest.mark.parametrize("variant", VARIANTS)
def test_unrolled_is_the_derivative_of_the_steps_that_were_taken(omega, variant):
    options = {"variant": variant, "max_iter": 3, "tolerance": 0.0, "on_failure": "ignore"}
    if variant == "fully_corrective":
        options = {}
    layer = Layer("assignment", "frank_wolfe", regularizer=OMEGAS[omega], backward="unrolled", **options)
    # Not over so few structures that the same two come up again: an exact step leaves them equally good.
    assert gradcheck(layer, draw(21, 2, 4, 4).requires_grad_(), fast_mode=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_implicit_and_unrolled_agree_at_the_optimum(variant):
    """On a simplex with an optimum inside, which the vanilla variant approaches linearly."""
    options = {"regularizer": cubic, "temperature": 20.0, "variant": variant, "tolerance": 1e-10}
    gradients = []
    for backward in ("implicit", "unrolled"):
        theta = draw(12, 3, 4).requires_grad_()
        solution = infer(theta, "categorical", "frank_wolfe", closed_form=False, backward=backward, **options)
        assert (solution.mean > 0.2).all()
        (solution.mean * draw(13, 3, 4)).sum().backward()
        gradients.append(theta.grad)
    torch.testing.assert_close(*gradients, atol=1e-8, rtol=0)


def test_weights_have_a_gradient():
    theta = draw(14, 2, 3, 3).requires_grad_()
    options = {"regularizer": quadratic(9), "temperature": 0.3}
    assert gradcheck(lambda t: infer(t, "assignment", "frank_wolfe", **options).weights, theta)
    weights = infer(theta, "assignment", "frank_wolfe", backward="central_differences", **options).weights
    with pytest.raises(UnsupportedError, match="no gradient of the weights"):
        weights.square().sum().backward()


@pytest.mark.sampled(2)
@every_omega
def test_losses_are_twice_differentiable(omega):
    loss = FenchelYoungLoss("assignment", "frank_wolfe", regularizer=OMEGAS[omega], reduction="none")
    gold = relax(draw(15, 2, 3, 3), "assignment", "map")
    theta = draw(16, 2, 3, 3).requires_grad_()
    # Two solves for each part: of one instance, since no loss depends on the other instances.
    assert gradcheck(lambda t: loss(t, gold[:1]), theta[:1].detach().requires_grad_())
    assert gradgradcheck(lambda t: loss(t, gold), theta, fast_mode=True)


@pytest.mark.parametrize("backward", ["implicit", "unrolled", "central_differences"])
def test_second_derivatives_of_the_mean_are_refused(backward):
    theta = draw(17, 2, 3, 3).requires_grad_()
    mean = relax(theta, "assignment", "frank_wolfe", regularizer="entropy", backward=backward)
    (gradient,) = torch.autograd.grad(mean.square().sum(), theta, create_graph=True)
    with pytest.raises(UnsupportedError, match="first derivatives only"):
        gradient.sum().backward()


@pytest.mark.parametrize("backward", ["implicit", "central_differences"])
def test_a_gradient_of_nan_stays_with_its_instance(backward):
    theta = draw(18, 2, 3, 3).requires_grad_()
    cotangent = draw(19, 2, 3, 3)
    cotangent[0, 0, 0] = torch.nan
    mean = relax(theta, "assignment", "frank_wolfe", regularizer="entropy", backward=backward)
    (gradient,) = torch.autograd.grad(mean, theta, cotangent)
    assert gradient[0].isnan().all()
    assert gradient[1].isfinite().all()


# ----------------------------------------------------------------------------- conformance


@pytest.mark.full
@pytest.mark.parametrize("omega", ["entropy", "binary_entropy"])
def test_laws(omega, conformance_dtypes):
    """The default Ω has them on every structure, in the tests of all relaxations."""
    oracle = get_oracle("dag_path", graph=((0, 1), (1, 2), (0, 2)))
    check_relaxation(get_relaxation("frank_wolfe", regularizer=omega), oracle, (3,), dtypes=conformance_dtypes)


# ----------------------------------------------------------------------------- statuses and refusals


@pytest.mark.parametrize("variant", VARIANTS)
def test_rounds_that_do_not_suffice_are_a_status_and_a_warning(variant):
    options = {"regularizer": "entropy", "variant": variant, "max_iter": 1}
    theta = draw(18, 3, 4, 4, scale=2.0)
    with pytest.warns(ConvergenceWarning, match="3 of 3 instances stopped after .* max_iter is 1"):
        solution = infer(theta, "assignment", "frank_wolfe", **options)
    assert not solution.converged.any()
    assert (solution.gap > 1e-3).all()
    with pytest.raises(ConvergenceError):
        infer(theta, "assignment", "frank_wolfe", on_failure="raise", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infer(theta, "assignment", "frank_wolfe", on_failure="ignore", **options)


class Costly(Listed):
    """Takes no gains."""

    event_ndim = 2

    @property
    def requires_nonpositive_theta(self):
        return True

    def argmax(self, theta):
        assert not (theta > 0).any()
        return super().argmax(theta)


def test_oracles_of_costs_take_the_squared_norm_alone():
    oracle = Costly(assignments(3))
    theta = -draw(19, 2, 3, 3).abs()
    exact = relax(theta, "assignment", "sparsemap", tolerance=0)
    for variant, tolerance in (("fully_corrective", 1e-9), ("vanilla", 1e-3)):
        solution = infer(theta, oracle, "frank_wolfe", variant=variant, tolerance=tolerance)
        distance = (solution.mean - exact).flatten(1).square().sum(1) / 2
        assert (distance <= solution.gap + 1e-12).all()
    for omega in ("entropy", cubic):
        with pytest.raises(UnsupportedError, match=r'at most 0.*use regularizer="squared_l2"'):
            Layer(oracle, "frank_wolfe", regularizer=omega)
    with pytest.raises(UnsupportedError, match="central differences can make them positive"):
        Layer(oracle, "frank_wolfe", backward="central_differences")


def test_options_are_checked():
    for options in (
        {"regularizer": "l1"},
        {"regularizer": 3},
        {"variant": "lazy"},
        {"backward": "forward"},
        {"closed_form": 1},
        {"temperature": 0},
        {"max_iter": 0},
        {"tolerance": -1},
    ):
        with pytest.raises(InvalidInputError, match=next(iter(options))):
            get_relaxation("frank_wolfe", **options)


def test_is_a_record_of_its_options():
    relaxation = get_relaxation("frank_wolfe", regularizer="entropy", temperature=0.5)
    assert "regularizer='entropy'" in repr(relaxation)
    assert relaxation == get_relaxation("frank_wolfe", regularizer="entropy", temperature=0.5)
    assert relaxation != get_relaxation("frank_wolfe", regularizer="binary_entropy", temperature=0.5)
    assert pickle.loads(pickle.dumps(relaxation)) == relaxation
    colder = dataclasses.replace(relaxation, temperature=0.1)
    half = torch.full((1, 2), 0.5)
    assert colder.omega(get_oracle("categorical"), half).item() == pytest.approx(-0.1 * torch.tensor(2.0).log())
