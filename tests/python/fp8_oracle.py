"""FP8 serving by docs/serving.md, in numpy: shares nothing with deltawire, and with torch only memory."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch

# Codes 0x00 to 0x7E: 4 bits of exponent (bias 7), 3 of mantissa; exponent 0 is subnormal.
VALUES = np.array(
    [
        (code & 7) * 2.0**-9 if code < 8 else (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7)
        for code in range(0x7F)
    ]
)
MIDPOINTS = (VALUES[:-1] + VALUES[1:]) / 2
NAN_CODE = 0x7F


def code_of(quotient: np.ndarray) -> np.ndarray:
    """Nearest code of finite float64 values, ties to the even one, saturated."""
    magnitude = np.abs(quotient)
    below = np.searchsorted(MIDPOINTS, magnitude, side="left")  # midpoints that are smaller
    tie = (below < len(MIDPOINTS)) & (MIDPOINTS[np.minimum(below, len(MIDPOINTS) - 1)] == magnitude)
    code = np.where(tie & (below % 2 == 1), below + 1, below)
    return (code | np.where(np.signbit(quotient), 0x80, 0)).astype(np.uint8)


def as_f32(tensor: torch.Tensor) -> np.ndarray:
    """The values, which F32 holds exactly, decoded from the bits where numpy has no such dtype."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype != torch.bfloat16:
        return plain.numpy().astype(np.float32)
    high = plain.view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
    return (high << 16).view(np.float32)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Positive finite float32 values rounded to nearest even in bfloat16, as float32."""
    bits = values.view(np.uint32).astype(np.uint64)
    kept = bits >> 16
    rest = bits & 0xFFFF
    kept += (rest > 0x8000) | ((rest == 0x8000) & (kept & 1 == 1))
    return (kept << 16).astype(np.uint32).view(np.float32)


def scale_of(cell: np.ndarray, scale_dtype: str) -> np.float32:
    finite = np.abs(cell[np.isfinite(cell)])
    amax = finite.max() if finite.size else np.float32(0)
    if amax == 0:
        return np.float32(1)
    # Through float64: of a quotient of two float32, rounding twice is rounding once.
    scale = np.maximum(np.float64(amax) / 448.0, 2.0**-126).astype(np.float32)
    return to_bf16(scale.reshape(1))[0] if scale_dtype == "BF16" else scale


def quantized(
    weight: torch.Tensor, granularity: str | tuple[int, int], scale_dtype: str = "F32"
) -> tuple[np.ndarray, np.ndarray]:
    """Codes as uint8 in the weight's shape, and scales as float32 values, one a cell: [E,] rows, columns."""
    x = as_f32(weight)
    rows, columns = x.shape[-2:]
    if granularity == "tensor":
        high, wide = rows, columns
    elif granularity == "channel":
        high, wide = 1, columns
    else:
        high, wide = granularity
    grid = (math.ceil(rows / high), math.ceil(columns / wide))
    codes = np.zeros(x.shape, np.uint8)
    scales = np.zeros((*x.shape[:-2], *grid), np.float32)
    for expert in np.ndindex(x.shape[:-2]):
        for i, j in itertools.product(range(grid[0]), range(grid[1])):
            at = (*expert, slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))
            scales[(*expert, i, j)] = scale = scale_of(x[at], scale_dtype)
            codes[at] = codes_of(x[at], scale)
    return codes, scales


def codes_of(x: np.ndarray, scale: np.float32) -> np.ndarray:
    finite = np.isfinite(x)
    quotient = (np.where(finite, x, np.float32(0)).astype(np.float64) / np.float64(scale)).astype(np.float32)
    return np.where(finite, code_of(quotient.astype(np.float64)), np.uint8(NAN_CODE))


def raw(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's bytes, row-major."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def scale_bytes(scales: np.ndarray, scale_dtype: str) -> np.ndarray:
    """Scales as a tensor of their dtype has them."""
    if scale_dtype == "BF16":
        return (scales.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    return scales.reshape(-1).view(np.uint8)


def assert_served(
    weight: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    granularity: str | tuple[int, int],
    scale_dtype: str = "F32",
) -> None:
    """Codes and scales are, bit by bit, what the weight is to be served as."""
    want_codes, want_scales = quantized(weight, granularity, scale_dtype)
    assert codes.dtype == torch.float8_e4m3fn and codes.shape == weight.shape
    wrong = int((raw(codes) != want_codes.reshape(-1)).sum())
    assert wrong == 0, f"{wrong} of {codes.numel()} codes differ"
    assert np.array_equal(raw(scales), scale_bytes(want_scales, scale_dtype)), "scales differ"
