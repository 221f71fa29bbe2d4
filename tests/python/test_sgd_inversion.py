"""Real torch.optim.SGD steps are undone: every changed BF16 weight is found, every old value is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from deltawire import _core

N = 1 << 17
SEED = 7
CPU = _core.Kernels("cpu")
KERNELS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
MODES: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "momentum, decay, dampening": {"momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1},
    "plain": {},
    "plain, decay": {"weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "nesterov, decay": {"momentum": 0.95, "nesterov": True, "weight_decay": 0.01},
}


def served(weights: torch.Tensor) -> np.ndarray:
    return weights.detach().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def memory(tensor: torch.Tensor) -> _core.Memory:
    storage = tensor.untyped_storage()
    return _core.host_memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), storage)


def next_to_edges(rng: np.random.Generator) -> torch.Tensor:
    """Weights within four float32 units of an edge of their BF16 cell."""
    pattern = rng.integers(0x3800, 0x4000, N).astype(np.uint32) << 16
    bits = pattern + 0x8000 + rng.integers(-4, 5, N).astype(np.uint32)
    bits |= rng.integers(0, 2, N).astype(np.uint32) << 31
    return torch.from_numpy(bits.view(np.float32).copy())


def updates_gradient(options: dict[str, Any]) -> bool:
    """torch's foreach Nesterov adds momentum * buffer to ``.grad`` itself where it has made no copy."""
    copied = options.get("weight_decay") or options.get("maximize")
    return bool(options.get("foreach") and options.get("nesterov") and not copied)


def undo(
    weights: torch.nn.Parameter, state: dict[str, torch.Tensor], options: dict[str, Any], lr: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of certified changes, their old bits, positions of uncertain elements."""
    assert weights.grad is not None
    x, y = weights.grad, None
    hyper = (lr, options.get("weight_decay", 0.0), 0.0)
    if options.get("nesterov") and updates_gradient(options):
        pass
    elif options.get("nesterov"):
        y = state["momentum_buffer"]
        hyper = (*hyper[:2], options["momentum"])
    elif "momentum" in options:
        x = state["momentum_buffer"]
        hyper = (lr, 0.0, 0.0)
    if options.get("maximize") and x is weights.grad:
        hyper = (-hyper[0], -hyper[1], -hyper[2])
    second = None if y is None else memory(y)
    _, changed, old, uncertain, _, _ = CPU.invert_sgd(
        memory(weights.detach()), memory(x), second, 0, N, hyper, 0, 0
    )
    return (
        np.frombuffer(changed, np.uint32),
        np.frombuffer(old, np.uint16),
        np.frombuffer(uncertain, np.uint32),
    )


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_change_of_real_steps_is_found(kernel: str, mode: str, maximize: bool) -> None:
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    for lr in (1e-4, 3e-3, 0.1):
        weights = torch.nn.Parameter(next_to_edges(rng))
        options = MODES[mode] | KERNELS[kernel] | {"maximize": maximize}
        optimizer = torch.optim.SGD([weights], lr=lr, **options)
        for step in range(4):
            with torch.no_grad():
                if step % 2 == 0:
                    weights.copy_(next_to_edges(rng))
            # From far below one unit of the weight to many cells.
            sizes = np.exp2(rng.uniform(-24, -4, N)) / lr
            weights.grad = torch.from_numpy((rng.normal(0, 1, N) * sizes).astype(np.float32))
            before = served(weights).copy()
            optimizer.step()
            changed, old, uncertain = undo(weights, optimizer.state[weights], options, lr)
            really = before != served(weights)
            found = np.zeros(N, dtype=bool)
            found[changed] = True
            assert not (found & ~really).any()
            assert (old == before[changed]).all()
            found[uncertain] = True
            assert not (really & ~found).any()
            assert really.sum() > N // 50


def test_a_wrong_lr_is_caught() -> None:
    rng = np.random.default_rng(SEED)
    weights = torch.nn.Parameter(next_to_edges(rng))
    optimizer = torch.optim.SGD([weights], lr=1e-3, momentum=0.9)
    weights.grad = torch.from_numpy(
        (rng.normal(0, 1, N) * np.exp2(rng.uniform(-14, 6, N))).astype(np.float32)
    )
    before = served(weights).copy()
    optimizer.step()
    changed, old, uncertain = undo(weights, optimizer.state[weights], {"momentum": 0.9}, 0.99e-3)
    missed = before != served(weights)
    missed[changed] = False
    missed[uncertain] = False
    assert missed.any() or (old != before[changed]).any()
