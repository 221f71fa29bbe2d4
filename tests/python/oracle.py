"""The independent compare: what engines must serve, by torch alone, against a receiver's live bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor in logical row-major order, as integers."""
    plain = tensor.detach().cpu().contiguous()
    return plain.view(torch.uint8) if plain.dim() == 0 and plain.dtype == torch.bool else _as_integers(plain)


def _as_integers(plain: torch.Tensor) -> torch.Tensor:
    flat = plain.reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()])


def served(
    model: torch.nn.Module, rules: Mapping[str, torch.dtype | None] | None = None
) -> dict[str, torch.Tensor]:
    """Name -> the tensor that engines must hold. rules: exceptions from "FP32 parameters as BF16"."""
    out = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        dtype = torch.bfloat16 if name in parameters and tensor.dtype == torch.float32 else tensor.dtype
        if rules and name in rules:
            dtype = rules[name] or tensor.dtype
        # Contiguous, of one dimension: torch casts NaN otherwise on its strided path and where there is none.
        flat = tensor.detach().contiguous().reshape(-1).to(dtype)
        out[name] = flat.reshape(tensor.shape).clone()
    return out


def engine_of(
    model: torch.nn.Module, rules: Mapping[str, torch.dtype | None] | None = None
) -> torch.nn.Module:
    """A receiver of its own memory in the served dtypes, whose values are all wrong."""
    engine = copy.deepcopy(model)
    wanted = served(model, rules)
    done: dict[int, torch.Tensor] = {}
    for module_name, module in engine.named_modules():
        for kind in (module._parameters, module._buffers):
            for key, tensor in kind.items():
                name = f"{module_name}.{key}" if module_name else key
                if tensor is None or name not in wanted:
                    continue
                if id(tensor) not in done:
                    fresh = torch.zeros_like(wanted[name], memory_format=torch.contiguous_format)
                    done[id(tensor)] = (
                        torch.nn.Parameter(fresh, requires_grad=False)
                        if kind is module._parameters
                        else fresh
                    )
                kind[key] = done[id(tensor)]
    return engine


def assert_exact(
    model: torch.nn.Module, engine: torch.nn.Module, rules: Mapping[str, torch.dtype | None] | None = None
) -> None:
    """Every served bit of every name is the trainer's."""
    live = dict(engine.named_parameters(remove_duplicate=False)) | dict(
        engine.named_buffers(remove_duplicate=False)
    )
    wanted = served(model, rules)
    assert wanted
    for name, tensor in wanted.items():
        have = live[name]
        assert have.dtype == tensor.dtype and have.shape == tensor.shape, name
        wrong = int((bits(have) != bits(tensor)).sum())
        assert wrong == 0, f"{name}: {wrong} of {tensor.numel()} elements differ"
