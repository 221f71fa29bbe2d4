"""torch tensors as the core takes them: storage, offset, dtype, shape, strides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _core
from ._errors import make

_DTYPE_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
SERVED_NAMES = frozenset(_DTYPE_NAMES.values())


def dtype_name(dtype: torch.dtype) -> str | None:
    """safetensors' name, or None for a dtype that deltawire does not carry."""
    return _DTYPE_NAMES.get(str(dtype).removeprefix("torch."))


def dtype_size(name: str) -> int:
    """Bytes of an element of a dtype by safetensors' name."""
    return next(getattr(torch, key).itemsize for key, value in _DTYPE_NAMES.items() if value == name)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor that ranks share (DTensor); the tensor itself where it is plain."""
    if not hasattr(tensor, "_local_tensor"):
        return tensor
    with torch.no_grad():  # with gradients it would be another view at every call
        out: torch.Tensor = tensor.to_local()  # type: ignore[operator]
    return out


Placement = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


def placement(tensor: torch.Tensor) -> Placement:
    """Where a tensor's elements are on this rank; another value means that it moved or changed its form."""
    tensor = local(tensor)
    return (
        tensor.untyped_storage().data_ptr(),
        int(tensor.storage_offset()),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.device,
    )


class Views:
    """Makes core tensors; views of one storage share one memory.

    ``torch_ops``: the torch path for tensors on the CPU too.
    """

    def __init__(self, torch_ops: bool = False) -> None:
        self.torch_ops = torch_ops
        self._memories: dict[tuple[torch.device, int], _core.Memory] = {}

    def threads(self, wanted: int, tensors: Iterable[torch.Tensor]) -> int:
        """Of the core. Torch operations run where the caller's current stream is: on its thread."""
        on_host = not self.torch_ops and all(tensor.device.type == "cpu" for tensor in tensors)
        return wanted if on_host else 1

    def of(self, name: str, tensor: torch.Tensor) -> _core.Tensor:
        check_plain(name, tensor)
        dtype = dtype_name(tensor.dtype)
        if dtype is None:
            raise make("unsupported", f"tensor {name}: deltawire does not carry {tensor.dtype}")
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr())
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memory(storage)
            # Storages without bytes have address 0 in common and nothing else.
            if storage.nbytes():
                self._memories[key] = memory
        offset = int(tensor.storage_offset()) * tensor.element_size()
        return _core.Tensor(memory, offset, dtype, list(tensor.shape), list(tensor.stride()))

    def _memory(self, storage: torch.UntypedStorage) -> _core.Memory:
        if storage.device.type == "cpu" and not self.torch_ops:
            return _core.host_memory(storage.data_ptr(), storage.nbytes(), storage)
        from ._torch_ops import Storage

        return _core.torch_memory(Storage(storage), storage.nbytes())


def check_plain(name: str, tensor: Any) -> None:
    """Refuses what has no elements of its own in one storage."""
    if hasattr(tensor, "_local_tensor") or hasattr(tensor, "placements"):
        raise make("unsupported", f"tensor {name} is sharded ({type(tensor).__name__}); gather it first")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise make(
            "unsupported",
            f"tensor {name} is a {type(tensor).__name__}, which keeps its elements elsewhere; only "
            "plain torch tensors are read",
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise make("unsupported", f"tensor {name} is {tensor.layout}, not a dense strided tensor")
    if tensor.device.type == "meta":
        raise make("unsupported", f"tensor {name} is on the meta device; load the model's weights first")
    if tensor.is_conj() or tensor.is_neg():
        raise make(
            "unsupported", f"tensor {name} is a lazy conjugate or negative view; call resolve_conj() first"
        )
