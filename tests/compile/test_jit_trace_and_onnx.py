"""Exporters that would freeze an answer: torch.jit.trace and torch.onnx.export raise a sentence, torch.export works."""

import pytest
import torch

import structinf as si
from structinf.compile import custom_op

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")

CALLS = {
    "relax": lambda x: si.relax(x, "assignment", "map"),
    "infer": lambda x: si.infer(x, "assignment", "map").mean,
    "loss": lambda x: si.FenchelYoungLoss("assignment", "sparsemap")(x, torch.eye(3).expand(2, 3, 3)),
    "sparsemax": lambda x: si.simplex.sparsemax(x),
    "entmax": lambda x: si.simplex.entmax(x, 1.3),
    "log_partition": lambda x: si.log_partition(x, "arborescence"),
    "topk": lambda x: si.topk(x, "bits", 2).scores,
    "gibbs": lambda x: si.Gibbs(x, "arborescence").entropy(),
    "expect": lambda x: si.expect(lambda y: y.sum((-2, -1)), x, "arborescence", "exact"),
    "soft_rank": lambda x: si.soft_rank(x),
    "soft_dtw": lambda x: si.soft_dtw(x),
    "attention": lambda x: si.StructuredAttention(oracle="bits", relaxation="marginals")(x, x, x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_traced_call_raises_an_error(name):
    with pytest.raises(si.UnsupportedError, match=r"torch\.jit\.trace cannot record structinf.*torch\.export"):
        torch.jit.trace(CALLS[name], (torch.randn(2, 3, 3),))


class Calls(torch.nn.Module):
    """A model whose forward pass is one call."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


@pytest.mark.parametrize("name", ["infer", "log_partition", "topk", "gibbs", "expect", "soft_dtw"])
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_call_that_breaks_the_graph_raises_an_error(name, strict):
    # In strict mode, the compiler's own error holds the text of the library's error.
    with pytest.raises(
        (si.UnsupportedError, RuntimeError), match=r"torch\.export cannot record this call of structinf"
    ):
        torch.export.export(Calls(CALLS[name]), (torch.randn(2, 3, 3),), strict=strict)


def test_an_export_keeps_other_errors_and_calls_of_torch_operators_alone():
    with pytest.raises(si.UnknownNameError, match="no relaxation is called 'sparsemaq'"):
        torch.export.export(Calls(lambda x: si.infer(x, "bits", "sparsemaq").mean), (torch.randn(2, 3),), strict=False)
    x = torch.randn(2, 3, 3)
    program = torch.export.export(Calls(lambda x: si.pairwise_cost(x, x)), (x,), strict=False)
    torch.testing.assert_close(program.module()(x), si.pairwise_cost(x, x))


class Model(torch.nn.Module):
    """A linear layer and a structured layer."""

    def __init__(self, oracle, relaxation):
        super().__init__()
        self.scores = torch.nn.Linear(4, 4)
        self.structure = si.Layer(oracle, relaxation)

    def forward(self, x):
        return self.structure(self.scores(x))


@pytest.mark.parametrize(
    ("oracle", "relaxation"), [("assignment", "sparsemap"), ("arborescence", "marginals"), ("subset", "map")]
)
def test_an_exported_model_takes_any_batch(oracle, relaxation):
    options = {"k": 2} if oracle == "subset" else {}
    model = Model(si.get_oracle(oracle, **options), relaxation)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (torch.randn(2, 4, 4),), dynamic_shapes=({0: batch},))
    x = torch.randn(7, 4, 4)
    torch.testing.assert_close(program.module()(x), model(x))


def test_a_program_of_another_process_raises_an_error(tmp_path, monkeypatch):
    program = torch.export.export(Model("assignment", "map"), (torch.randn(2, 4, 4),))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    monkeypatch.setattr(custom_op, "_FUNCTIONS", {})
    with pytest.raises(si.UnsupportedError, match=r"does not know the call .structinf\.api\.relax.*state_dict"):
        loaded.module()(torch.randn(2, 4, 4))


def test_onnx_export_says_what_to_do_instead(tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"structinf.api.relax has no ONNX operator"):
        torch.onnx.export(Model("assignment", "sparsemap").eval(), (torch.randn(2, 4, 4),), tmp_path / "model.onnx")


@pytest.mark.parametrize("strict", [False, True])
def test_the_onnx_flag_is_an_error_while_a_model_is_exported(monkeypatch, strict):
    """As the exporter itself sees the call, without the packages that it needs."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(RuntimeError, match=r"no ONNX operator.*torch\.export\.export"):
        torch.export.export(Model("assignment", "sparsemap"), (torch.randn(2, 4, 4),), strict=strict)
