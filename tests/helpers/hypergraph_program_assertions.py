"""Every query of a hypergraph program against a list of its structures and its recursion in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from hypergraph_program_examples import FORBIDDEN, INF, NORMAL, TIES, Batch, Program, kinds_for
from regularizers_by_alpha import FAMILY
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.parts import Parts, as_tuple, map_parts, pack_like

__all__ = ["Program", "every_query"]

# ----------------------------------------------------------------------------- lists


def recursion(program: Program) -> None:
    """The plain recursion derives each structure of the plain list, once."""
    for length in (None, *program.lengths):
        plain = program.plain(length)
        derived = [d.parts for d in plain.derivations]
        assert sorted(derived) == sorted(map(tuple, plain.rows))
        assert len(set(derived)) == len(derived)


def lists(program: Program) -> None:
    for given in program.batches(NORMAL):
        for one in given.instances:
            listed = given.flat(given.oracle[[one.index]].enumerate(program.event_shape))
            assert sorted(listed.tolist()) == sorted(one.plain.rows.tolist())


def labels(program: Program) -> None:
    for given in program.batches(NORMAL):
        for one in given.instances:
            oracle, _, y = one.every_structure()
            names = oracle.decode(y)
            assert names.dtype == torch.int64
            assert names.ndim == 1 + oracle.label_ndim
            assert len(names.flatten(1).unique(dim=0)) == len(names)
            for actual, expected in zip(as_tuple(oracle.encode(names, y)), as_tuple(y), strict=True):
                assert torch.equal(actual, expected)
            if given.lengths[one.index] != 0:  # else all labels are padding
                with pytest.raises(InvalidInputError, match=r"^labels.* at batch index 0"):
                    oracle.encode(torch.full_like(names, 99), y)
            with pytest.raises(InvalidInputError, match=r"^labels"):
                oracle.encode(names[:, :-1] if names.shape[1] > 1 else names[:, :0], y)


# ----------------------------------------------------------------------------- the best


def argmax(program: Program) -> None:
    for given in program.batches(*program.kinds):
        y = given.oracle.argmax(given.theta)
        assert all(t.dtype == given.kind.dtype for t in as_tuple(y))
        for one, row in zip(given.instances, given.flat(y), strict=True):
            (found,) = np.flatnonzero((one.plain.rows == row).all(1))
            close(one.scores[found], one.ranking[0], given.kind.rounding)


def ties(program: Program) -> None:
    """They go to the first of the recursion's options."""
    for given in program.batches(TIES):
        y = given.flat(given.oracle.argmax(given.theta))
        assert y.tolist() == [one.at(INF).mean(one.plain.goal) for one in given.instances]


def k_best(program: Program) -> None:
    for given in program.batches(*program.kinds):
        most = 1 + max(one.count for one in given.instances)
        y, scores, valid = given.oracle.topk(given.theta, most)
        rows = given.flat(y)
        for b, one in enumerate(given.instances):
            count = len(one.ranking)
            known = {tuple(row): score for row, score in zip(one.plain.rows, one.scores, strict=True)}
            found = list(map(tuple, rows[:count, b]))
            assert len(set(found)) == count
            close([known[row] for row in found], one.ranking, given.kind.rounding)
            close(scores[:, b], [*one.ranking, *[-INF] * (most - count)], given.kind.rounding)
            assert valid[:, b].tolist() == [k < count for k in range(most)]
            assert not rows[count:, b].any()


# ----------------------------------------------------------------------------- sums over the list


def sums(program: Program) -> None:
    """log Z, its gradient, the latter weighted, the Hessian's product, the entropy and the number of structures."""
    for given in program.batches(*program.kinds):
        oracle, theta = given.oracle, given.theta
        weight = torch.linspace(-1, 2, len(given.lengths), dtype=given.kind.dtype)
        value, mean, entropy = oracle.log_partition(theta), oracle.marginals(theta), oracle.entropy(theta)
        weighted = oracle.log_partition_vjp(theta, weight)
        product = oracle.covariance_product(theta, given.direction)
        for y in (value, entropy, *as_tuple(mean), *as_tuple(weighted), *as_tuple(product)):
            assert y.dtype == given.kind.dtype
        count = oracle.count(theta)
        mean, weighted, product, v = map(given.flat, (mean, weighted, product, given.direction))
        for b, one in enumerate(given.instances):
            p, rows, room = one.gibbs, one.plain.rows, given.kind.rounding
            along = rows @ v[b]
            close(value[b], one.log_partition, room)
            close(mean[b], p @ rows, room)
            close(weighted[b], weight[b].item() * (p @ rows), room)
            close(product[b], (p * (along - p @ along)) @ rows, room)
            close(entropy[b], -math.fsum(x * math.log(x) for x in p if x > 0), room)
            assert count[b] == len(one.ranking)


def log_probabilities(program: Program) -> None:
    for given in program.batches(NORMAL, FORBIDDEN):
        for one in given.instances:
            oracle, theta, y = one.every_structure()
            close(oracle.log_prob(theta, y), one.scores - one.log_partition)
        with pytest.raises(InvalidInputError, match=r"not a structure .*index 0"):
            given.oracle.log_prob(given.theta, map_parts(lambda t: torch.full_like(t, 0.5), given.theta))


def derivatives(program: Program) -> None:
    for given in program.batches(NORMAL):
        differentiate(given.oracle[:2].log_partition, given, 2)


# ----------------------------------------------------------------------------- DP_Ω and its walk


def smoothed(program: Program, alpha: float) -> None:
    """The value, its gradient, its Hessian's product and the entropy."""
    omega = FAMILY[alpha]
    for given in program.batches(*program.kinds):
        oracle, theta = given.oracle, given.theta
        value, entropy = oracle.smoothed_value(theta, omega), oracle.entropy(theta, omega)
        mean = given.flat(oracle.smoothed_mean(theta, omega))
        product = given.flat(oracle.smoothed_hessian_product(theta, given.direction, omega))
        v = given.flat(given.direction)
        for b, one in enumerate(given.instances):
            at, goal, room = one.at(alpha), one.plain.goal, given.kind.rounding
            close(value[b], at.v[goal], room)
            close(mean[b], at.mean(goal), room)
            close(entropy[b], at.entropy(goal), room)
            if not given.kind.ties:  # where the Hessian may have steps
                close(product[b], at.hessian_product(goal, v[b].tolist()), room)


def support(program: Program, alpha: float) -> None:
    """Every structure that the walk can make, and its probability."""
    omega = FAMILY[alpha]
    for given in program.batches(NORMAL, FORBIDDEN, TIES):
        structures, p = given.oracle.enumerate_support(given.theta, omega)
        rows = given.flat(structures)
        for b, one in enumerate(given.instances):
            expected = {y: w for y, w in one.support(alpha).items() if w > 1e-12}
            count = len(expected)
            found = dict(zip(map(tuple, rows[:count, b]), p[:count, b].tolist(), strict=True))
            assert found.keys() == expected.keys()
            close([found[y] for y in expected], list(expected.values()))
            assert (p[count:, b] <= (1e-12 if given.kind.ties else 0)).all()
            assert (p.diff(dim=0) <= 0).all()


def walk_probabilities(program: Program, alpha: float) -> None:
    for given in program.batches(NORMAL, FORBIDDEN):
        for one in given.instances:
            oracle, theta, y = one.every_structure()
            known = one.support(alpha)
            found = oracle.log_prob(theta, y, FAMILY[alpha])
            close(found.exp(), [known.get(tuple(row), 0.0) for row in one.plain.rows])


def samples(program: Program, alpha: float) -> None:
    """Each structure comes as often as it should, within five standard errors, and nothing else comes."""
    n, omega = 3000, FAMILY[alpha]
    for given in program.batches(NORMAL, FORBIDDEN):
        drawn = given.flat(given.oracle.smoothed_sample(given.theta, n, omega, torch.Generator().manual_seed(3)))
        for b, one in enumerate(given.instances):
            rows, times = np.unique(drawn[:, b], axis=0, return_counts=True)
            count, expected = Counter(dict(zip(map(tuple, rows), times, strict=True))), one.support(alpha)
            assert count.keys() <= expected.keys()
            for y, p in expected.items():
                assert abs(count[y] / n - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1 / n
        if alpha == 1:
            plain = given.oracle.sample(given.theta, n, torch.Generator().manual_seed(3))
            assert np.array_equal(given.flat(plain), drawn)


def walk_derivatives(program: Program, alpha: float) -> None:
    given = next(program.batches(NORMAL))
    differentiate(lambda theta: given.oracle[:1].smoothed_value(theta, FAMILY[alpha]), given, 1)


def differentiate(function: Callable[[Parts], Tensor], given: Batch, count: int) -> None:
    """Both derivatives of a function of the first instances."""
    rows = [t[:count].clone(memory_format=torch.contiguous_format) for t in as_tuple(given.theta)]
    leaves = [t.requires_grad_() for t in rows]
    for check in (gradcheck, gradgradcheck):
        assert check(lambda *tensors: function(pack_like(tensors, given.theta)), leaves, fast_mode=True)


# ----------------------------------------------------------------------------- batches


def batches(program: Program) -> None:
    """Each instance alone is as in its batch; an empty batch has empty answers."""
    for given in program.batches(NORMAL, TIES):
        oracle, theta = given.oracle, given.theta
        for ask in (oracle.__class__.argmax, oracle.__class__.marginals, oracle.__class__.log_partition):
            together = ask(oracle, theta)
            spread = map_parts(lambda t: t.transpose(0, -1).contiguous().transpose(0, -1), theta)
            for b in range(len(given.lengths)):
                alone = ask(oracle[[b]], map_parts(lambda t, b=b: t[b : b + 1], spread))
                for a, t in zip(as_tuple(alone), as_tuple(together), strict=True):
                    close(a[0], t[b])
        none, nothing = oracle[:0], map_parts(lambda t: t[:0], theta)
        assert none.log_partition(nothing).shape == (0,)
        for ask in (none.argmax, none.marginals):
            assert [t.shape for t in as_tuple(ask(nothing))] == [t.shape for t in as_tuple(nothing)]
        assert none.decode(none.argmax(nothing)).shape[0] == 0


def infeasible(program: Program) -> None:
    for given in program.batches(NORMAL):
        oracle = given.oracle
        theta: Parts = map_parts(torch.clone, given.theta)
        for t in as_tuple(theta):
            t[1] = -INF
        if not given.instances[1].plain.rows.any(1).all():
            close(oracle.score(theta, oracle.argmax(theta))[1], 0)  # the empty structure needs no part
            continue
        for ask in (oracle.argmax, oracle.log_partition, oracle.marginals, lambda t, o=oracle: o.topk(t, 2)):
            with pytest.raises(InfeasibleError, match="batch index 1"):
                ask(theta)


# ----------------------------------------------------------------------------- all of them

QUERIES = (
    recursion,
    lists,
    labels,
    argmax,
    ties,
    k_best,
    sums,
    log_probabilities,
    derivatives,
    batches,
    infeasible,
)
WALKS = (smoothed, support, samples)
SMOOTH_WALKS = (walk_probabilities, walk_derivatives)


def every_query(programs: Sequence[Program]) -> Callable[[Any], Any]:
    """Run a test for each of the ``programs``, which share the kinds of potentials, and each of the queries.

    The combinations have the mark ``matrix``: without --full, a sample of them runs.
    """
    programs = [replace(program, kinds=kinds_for(i, len(programs))) for i, program in enumerate(programs)]
    queries: list[tuple[str, Callable[[Program], None]]] = [(query.__name__, query) for query in QUERIES]
    for alpha in (1, 1.5, 2, INF):
        for query in (*WALKS, *SMOOTH_WALKS) if alpha < INF else WALKS:
            queries.append((f"{query.__name__}-{alpha}", partial(query, alpha=alpha)))

    def decorate(test: Any) -> Any:
        asked = [(query, program) for program in programs for _, query in queries]
        names = [f"{name}-{program}" for program in programs for name, _ in queries]
        return pytest.mark.matrix(pytest.mark.parametrize(("query", "program"), asked, ids=names)(test))

    return decorate


def close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Within the tolerance, next to 1 and to the size of what is expected."""
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)
