"""Small models and loops that the tests share."""

from __future__ import annotations

import torch


class Mlp(torch.nn.Module):
    """Weights, biases, a norm and a buffer."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.up = torch.nn.Linear(32, width)
        self.norm = torch.nn.LayerNorm(width)
        self.down = torch.nn.Linear(width, 8)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(torch.tanh(self.up(x))))


class Tied(torch.nn.Module):
    """An embedding whose weight is also the head's."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(16, 64, bias=False)
        self.embed = torch.nn.Embedding(64, 16)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


class Bag(torch.nn.Module):
    """Given tensors as parameters (a list entry: as buffers), by name."""

    def __init__(
        self, parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        for name, tensor in parameters.items():
            # The data as given: strides and storage stay.
            self.register_parameter(
                name, torch.nn.Parameter(tensor, requires_grad=tensor.dtype.is_floating_point)
            )
        for name, tensor in (buffers or {}).items():
            self.register_buffer(name, tensor)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()


def random_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, skip: tuple[str, ...] = ()) -> None:
    """A step with random gradients, none for the parameters named in skip."""
    for name, parameter in model.named_parameters():
        parameter.grad = None
        if parameter.requires_grad and name not in skip:
            parameter.grad = torch.randn(parameter.shape).to(parameter.dtype) * 1e-3
    optimizer.step()
