"""Every kind of module under autocast, copied, pickled, saved and loaded, and in the workers of a DataLoader."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from data_loader_worker import Collate
from module_examples import CASES

pytestmark = pytest.mark.slow

every_case = pytest.mark.parametrize("name", CASES)


def _loaded(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def _step(case, module, x, autocast=False):
    """The output and the gradient in x; the way back is outside autocast, as torch asks."""
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = case.call(module, leaf)
    (gradient,) = torch.autograd.grad(out.float().square().sum(), leaf)
    return out.detach(), gradient


@pytest.mark.sampled(3)
@every_case
def test_autocast_changes_precision_alone(name):
    """What it lowers is torch's own products of matrices, in attention; structures are found in full precision."""
    case = CASES[name]
    module, x = case.make(), case.draw()
    expected = _step(case, copy.deepcopy(module), x)
    found = _step(case, module, x, autocast=True)
    tolerance = {"atol": 0.1, "rtol": 0.1} if "attention" in name else {"atol": 1e-6, "rtol": 1e-6}
    torch.testing.assert_close(found, expected, check_dtype="attention" not in name, **tolerance)


@every_case
def test_half_precision_goes_through_single(name):
    case = CASES[name]
    module, x = case.make(), case.draw().bfloat16()
    found, gradient = _step(case, module.bfloat16() if list(module.parameters()) else module, x)
    assert found.isfinite().all()
    assert gradient.isfinite().all()
    assert (found.dtype, gradient.dtype) == (torch.bfloat16, torch.bfloat16)
    if "attention" not in name and not list(module.parameters()):
        torch.testing.assert_close(found, case.call(case.make(), x.float()).bfloat16())


@pytest.mark.matrix
@pytest.mark.parametrize(
    "how",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), _loaded],
    ids=["deepcopy", "pickle", "torch.save"],
)
@every_case
def test_copies(name, how):
    case = CASES[name]
    module, x = case.make(), case.draw()
    _step(case, module, x)  # what has state has some now
    twin = how(module)
    assert repr(twin) == repr(module)
    assert not {t.data_ptr() for t in twin.state_dict().values()} & {t.data_ptr() for t in module.state_dict().values()}
    for _ in range(2):
        torch.testing.assert_close(_step(case, twin, x), _step(case, module, x), rtol=0, atol=0)


@every_case
def test_state_dicts_hold_all_state(name):
    case = CASES[name]
    module, other = case.make(), case.make()
    for seed in range(3):
        _step(case, module, case.draw(seed))
    missing, unexpected = other.load_state_dict(module.state_dict())
    assert not missing
    assert not unexpected
    for seed in range(2):
        torch.testing.assert_close(
            _step(case, other, case.draw(seed)), _step(case, module, case.draw(seed)), rtol=0, atol=0
        )
    assert case.make().state_dict().keys() == module.state_dict().keys()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_workers_call_layers_to_collate(method):
    modules = {name: case.make() for name, case in CASES.items()}
    data = list(range(4))
    here = Collate(copy.deepcopy(modules))
    expected = [here(data[:2]), here(data[2:])]  # kernels, threads and all are warm in this process before it forks
    loader = DataLoader(
        data, batch_size=2, num_workers=1, collate_fn=Collate(modules), multiprocessing_context=method, timeout=120
    )
    for found, answers in zip(loader, expected, strict=True):
        assert found.keys() == answers.keys()
        for name, answer in answers.items():
            torch.testing.assert_close(found[name], answer, msg=lambda text, name=name: f"{name}: {text}")
