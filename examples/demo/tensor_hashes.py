"""The independent check of the demo: bits of weights compared without any help from deltawire.

Both sides hash the BF16 bytes of every tensor they hold: the trainer those of the cast of its FP32 masters,
an engine those of the weights it samples from. Tied weights appear once, under the name ``named_parameters``
gives them.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def serving_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Each parameter as the engines must hold it: contiguous BF16 (a copy where the model's is FP32)."""
    return {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}


def tensor_hashes(model: torch.nn.Module, threads: int) -> dict[str, str]:
    """SHA-256 (hex) of the BF16 bytes of each parameter; one tensor a thread is cast at a time."""

    def hash_of(item: tuple[str, torch.nn.Parameter]) -> tuple[str, str]:
        name, parameter = item
        bits = parameter.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy()
        return name, hashlib.sha256(bits.data).hexdigest()

    with ThreadPoolExecutor(threads) as pool:
        return dict(pool.map(hash_of, model.named_parameters()))


def hash_differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Names of tensors that one side lacks or whose bytes differ, sorted."""
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def write_weights(model: torch.nn.Module, path: Path) -> None:
    """Writes the weights that the model holds right now."""
    save_file(serving_weights(model), path)


def bit_differences(model: torch.nn.Module, path: Path) -> list[str]:
    """Compares a file of ``write_weights`` with this model element by element, as bits.

    Returns one line a tensor that differs, saying how; empty if every bit is equal.
    """
    expected, found = serving_weights(model), load_file(path)
    lines = [f"{name}: only one side has it" for name in sorted(expected.keys() ^ found.keys())]
    for name in sorted(expected.keys() & found.keys()):
        ours, theirs = expected[name], found[name]
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            lines.append(
                f"{name}: {theirs.dtype} {list(theirs.shape)}, expected {ours.dtype} {list(ours.shape)}"
            )
            continue
        unequal = (ours.view(torch.int16) != theirs.view(torch.int16)).flatten()
        if bool(unequal.any()):
            first = int(unequal.nonzero()[0])
            lines.append(
                f"{name}: {int(unequal.sum())} of {unequal.numel()} elements differ, first at {first}"
            )
    return lines
