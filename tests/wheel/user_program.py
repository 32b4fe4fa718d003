"""A typed program of a user, which mypy and pyright check against the installed wheel, and which runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import structinf as si
from structinf.validation import check_feasible


@si.register_oracle("exactly_one_of_typed_program")
@dataclass(frozen=True)
class ExactlyOne(si.Oracle):
    event_ndim = 1

    def argmax(self, theta: Tensor) -> Tensor:
        best, index = theta.max(-1, keepdim=True)
        check_feasible(best.squeeze(-1), "choice")
        return torch.zeros_like(theta).scatter_(-1, index, 1.0)


class Tagger(nn.Module):
    def __init__(self, features: int, tags: int) -> None:
        super().__init__()
        self.unary = nn.Linear(features, tags)
        self.transition = nn.Parameter(torch.zeros(tags, tags))
        self.loss = si.FenchelYoungLoss("chain", "marginals")

    def potentials(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.unary(x), self.transition

    def forward(self, x: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.potentials(x), tags, lengths=lengths)
        return loss

    def predict(self, x: Tensor, lengths: Tensor) -> Tensor:
        best = si.relax(self.potentials(x), "chain", "map", lengths=lengths)
        return si.decode(best, "chain", lengths=lengths)


def main() -> None:
    model, x, lengths = Tagger(8, 3), torch.randn(2, 5, 8), torch.tensor([5, 3])
    loss: Tensor = model(x, torch.zeros(2, 5, dtype=torch.int64), lengths)
    torch.autograd.grad(loss, list(model.parameters()))
    print(model.predict(x, lengths).tolist())

    scores = torch.randn(4, 6, requires_grad=True)
    choices: Tensor = si.relax(scores, "categorical", si.get_relaxation("sparsemap", temperature=2.0))
    torch.autograd.grad(choices.square().sum(), scores)
    solution = si.infer(scores, "categorical", "sparsemap")
    if solution.weights is not None:
        print(solution.weights.shape, solution.converged)
    risk: Tensor = si.expect(lambda y: y[:, 1], scores, "categorical", "sparsemap")
    print(risk.shape, si.Gibbs(scores, "categorical").entropy().shape)
    print(si.log_partition(scores, "categorical").shape, si.topk(torch.randn(3, 3), "assignment", 2).structures)

    p: Tensor = si.simplex.sparsemax(torch.randn(8, 10))
    q: Tensor = si.simplex.Entmax15(dim=-1)(torch.randn(8, 10))
    mu: Tensor = si.relax(torch.randn(8, 6), ExactlyOne(), "sparsemap")
    print(p.shape, q.shape, mu.shape, si.testing.check_oracle(ExactlyOne(), (4,)))


if __name__ == "__main__":
    main()
