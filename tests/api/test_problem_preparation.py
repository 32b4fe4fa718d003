"""What the public calls make of what users pass: batches, dtypes, instance data, labels."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from structinf import InvalidInputError, relax
from structinf.parts import as_tuple
from toy_oracles import Explicit, Knapsack, Walk, walk

INF, NAN = torch.inf, torch.nan

RELAXATIONS = ["map", "marginals", "sparsemap"]
every_relaxation = pytest.mark.parametrize("relaxation", RELAXATIONS)


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


def test_lengths_of_an_empty_batch():
    assert relax(walk(0), Walk(), "map", lengths=[])[0].shape == (0, 3, 2)


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


# ----------------------------------------------------------------------------- labels


def test_labels_and_structures():
    tags = torch.tensor([[0, 1, 1], [1, 0, -1]])
    theta = walk(2)
    y = si.encode(tags, theta, Walk(), lengths=[3, 2])
    assert [t.shape for t in as_tuple(y)] == [(2, 3, 2), (2, 2, 2)]
    assert si.decode(y, Walk(), lengths=[3, 2]).tolist() == tags.tolist()
    assert si.decode(relax(theta, Walk(), "map"), Walk()).shape == (2, 3)


# ----------------------------------------------------------------------------- what was meant

CRF = si.FenchelYoungLoss("chain", "marginals")
TAGS = torch.tensor([[0, 2, 1, 1], [1, 1, 0, 2]])


def chain(*batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(*batch, 4, 3), torch.zeros(3, 3)


@pytest.mark.parametrize("loss", [CRF, si.RelaxedLoss("chain", "marginals")])
@pytest.mark.parametrize(
    "y",
    [TAGS.float(), TAGS.bool(), TAGS.tolist(), TAGS.numpy(), TAGS.double().numpy(), (TAGS, TAGS), (TAGS.tolist(), 1)],
)
def test_labels_in_another_form_are_told_which(loss, y):
    with pytest.raises((InvalidInputError, TypeError)) as error:
        loss(chain(2), y)
    assert str(error.value).startswith("y")
    assert "; labels are a tensor of integers of shape (2,) followed by 1 more dimension: torch.as" in str(error.value)


def test_labels_are_not_spoken_of_where_there_are_none():
    with pytest.raises(InvalidInputError, match=r"got \(2, 3\)$"):
        si.FenchelYoungLoss(Knapsack(3), "map")(torch.zeros(2, 4), torch.zeros(2, 3))


@pytest.mark.parametrize("theta", [chain(2)[0], chain(2)[::-1]])
def test_potentials_of_a_wrong_form_are_not_blamed_on_the_lengths(theta):
    with pytest.raises(InvalidInputError, match=r"^theta: chain takes unary \(T, S\) with transition"):
        CRF(theta, TAGS, lengths=[4, 2])


def test_lengths_that_do_not_fit_say_how_the_potentials_were_read():
    with pytest.raises(
        InvalidInputError,
        match=r"^lengths must .*\(\), got .*\(2,\); .*after the batch, \(2, 3, 3\), are the dimensions of one",
    ):
        CRF(torch.zeros(2, 3, 3), TAGS, lengths=[3, 2])
    with pytest.raises(InvalidInputError, match=r"\(2,\) followed by 1 more dimension, got shape \(2,\)"):
        si.relax(torch.zeros(2, 3, 3), "assignment", lengths=[3, 2])


def test_masks_are_told_their_lengths():
    mask = torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(InvalidInputError, match=r"got torch.bool; .*mask.sum\(-1\)$"):
        CRF(chain(2), TAGS, lengths=mask)
    for call in (CRF, lambda theta, y, **mask: si.relax(theta, "chain", **mask)):
        for name in ("mask", "attention_mask"):
            with pytest.raises(TypeError, match=rf"'{name}' .*lengths.*; .*mask.sum\(-1\), or, .*TokenMask"):
                call(chain(2), TAGS, **{name: mask})
    with pytest.raises(TypeError, match="'mask'") as error:
        si.relax(torch.zeros(3), "categorical", mask=mask)
    assert "sum" not in str(error.value)


@pytest.mark.parametrize("swapped", [chain(2), chain(2)[0], list(chain(2))])
@pytest.mark.parametrize("call", [si.relax, si.infer, si.decode])
def test_arguments_in_another_order(call, swapped):
    with pytest.raises(TypeError, match=r"^oracle must be a name or Oracle object, got a .*; pass the scores first"):
        call("chain", swapped)


@pytest.mark.parametrize("call", [si.relax, si.infer, si.decode])
def test_no_oracle(call):
    for wrong in (None, 3, object()):
        with pytest.raises(TypeError, match=r"^oracle must be a name or Oracle object, got"):
            call(torch.zeros(3), wrong)


def test_messages_speak_of_the_argument_at_hand():
    y = si.relax(chain(2), "chain", "map")
    with pytest.raises(InvalidInputError, match=r"^y: chain takes unary"):
        si.decode(y[0], "chain")
    with pytest.raises(InvalidInputError, match=r"^y: assignment needs at least 2 dimensions"):
        si.decode(torch.zeros(3), "assignment")
    with pytest.raises(InvalidInputError, match=r"^lengths must have the batch shape of y, \(2,\)"):
        si.decode(y, "chain", lengths=[4, 3, 2])
    with pytest.raises(InvalidInputError, match=r"^like: chain takes unary"):
        si.encode(TAGS, chain(2)[0], "chain")
    with pytest.raises(TypeError, match=r"^like must be real floating-point scores"):
        si.encode(torch.tensor([1]), torch.zeros(1, 3, dtype=torch.long), "categorical")


@pytest.mark.parametrize("name", ["assignment", "chain", "binary_tree", "subset"])
def test_decode_refuses_means_and_takes_missing_ranks(name):
    sizes = {"chain": ((3, 2), (2, 2)), "binary_tree": ((3, 3),), "assignment": ((2, 2),), "subset": ((3,),)}[name]
    theta = tuple(torch.zeros(2, *size) for size in sizes)
    options = {"k": 1} if name == "subset" else {}
    oracle = si.get_oracle(name, **options)
    theta = theta if len(theta) > 1 else theta[0]
    mean = relax(theta, oracle, "sparsemap")
    with pytest.raises(InvalidInputError, match=f"y is not a structure of {name}"):
        si.decode(mean, oracle)
    best = relax(theta, oracle, "map")
    later = tuple(torch.stack([b[0], m[1]]) for b, m in zip(as_tuple(best), as_tuple(mean), strict=True))
    with pytest.raises(InvalidInputError, match="batch index 1"):
        si.decode(later if len(later) > 1 else later[0], oracle)
    assert len(si.decode(si.topk(theta, oracle, 20).structures, oracle)) == 20


@pytest.mark.parametrize("wrong", [torch.zeros(3, 4), torch.ones(3, 4)])
def test_why_a_structure_is_none_is_said_of_one_argument(wrong):
    with pytest.raises(InvalidInputError, match=r"^y is not a structure of dtw: (?!y:|labels:)"):
        si.FenchelYoungLoss("dtw", "marginals")(torch.zeros(3, 4), wrong)


# ----------------------------------------------------------------------------- costs in place of potentials

COST = torch.rand(5, 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"lengths": [3]},
            r"^lengths must have shape \(2,\), .*for a cost of shape \(5, 6\); got shape \(1,\)",
        ),
        ({"lengths": 3}, r"^lengths must have shape .*got shape \(\)"),
        ({"lengths": [[3, 3]]}, r"^lengths must have shape .*got shape \(1, 2\)"),
        ({"lengths": [9, 3]}, r"^lengths must lie between 1 and 5 \(n = 5 rows\), got 9"),
        ({"lengths": [3.0, 3.0]}, "^lengths must be integers"),
        ({"lengths": "all"}, "^lengths must be a tensor or a list of numbers"),
        ({"band": [1, 2]}, r"^band must have the batch shape of cost, \(\)"),
        ({"band": 1.5}, "^band must hold integers"),
        ({"band": -1}, "^band: no path"),
    ],
)
@pytest.mark.parametrize("call", [si.soft_dtw, si.alignment_matrix, si.alignment_path])
def test_what_is_wrong_with_a_cost_is_said_of_it(call, options, said):
    with pytest.raises(InvalidInputError, match=said) as error:
        call(COST, **options)
    assert "theta" not in str(error.value).removesuffix("(theta is minus the cost)")


@pytest.mark.parametrize("wrong", [torch.zeros(6), torch.zeros(0, 6)])
def test_costs_of_a_wrong_shape(wrong):
    with pytest.raises(InvalidInputError, match=r"^cost: dtw"):
        si.soft_dtw(wrong)


@pytest.mark.parametrize("temperature", [None, 0, 1.0])
@pytest.mark.parametrize("make", [lambda **o: si.soft_dtw(COST, **o), si.SoftDTWLoss])
def test_regularizers_have_names_at_any_temperature(make, temperature):
    with pytest.raises(si.UnknownNameError, match="no regularizer is called 'entropy'"):
        make(temperature=temperature, regularizer="entropy")


@pytest.mark.parametrize("band", [-1, 1.5, True, "wide"])
def test_bands_are_refused_when_the_loss_is_made(band):
    with pytest.raises(
        InvalidInputError, match=r"^band must be None or an integer of at least 0, a number of cells, got"
    ):
        si.SoftDTWLoss(band=band)


def test_every_tensor_of_scores_is_checked():
    unary, transition = torch.full((2, 3), -torch.inf), torch.zeros(3, 3)
    transition[1, 2] = torch.nan
    with pytest.raises(InvalidInputError, match=r"theta\[1\] holds NaN"):
        si.relax((unary, transition), "chain", "map")


def test_scores_whose_sum_overflows_are_finite():
    scores, largest = torch.zeros(4, 3), torch.finfo(torch.float32).max
    scores[:, 1] = largest
    wanted = torch.eye(3)[1].expand(4, 3)
    assert torch.equal(si.relax(scores, "categorical", "map"), wanted)
    assert si.SPOPlusLoss("categorical")(scores, -scores).item() > 0
    scores[2, 0] = torch.inf
    with pytest.raises(InvalidInputError, match=r"holds \+inf at batch index 2"):
        si.relax(scores, "categorical", "map")


def test_a_call_after_another_form_of_scores():
    """An oracle skips checks for the form of scores that it has accepted, and for no other form."""
    oracle = si.get_oracle("assignment", allow_unmatched=False)
    square = torch.eye(3).repeat(2, 1, 1)
    assert torch.equal(si.relax(square, oracle, "map"), square)
    assert torch.equal(si.relax(square[0], oracle, "map"), square[0])
    assert si.relax(square.half(), oracle, "map").dtype is torch.float16
    assert si.relax(square[:, None], oracle, "map").shape == (2, 1, 3, 3)
    with torch.inference_mode():
        assert torch.equal(si.relax(square, oracle, "map"), square)
    with pytest.raises(TypeError, match="must be real floating-point scores"):
        si.relax(square.long(), oracle, "map")
    with pytest.raises(InvalidInputError, match="at least 2 dimensions"):
        si.relax(square[0, 0], oracle, "map")
