"""Each bit of FP8 serving is the one that docs/serving.md defines."""

from __future__ import annotations

import math
from typing import Any

import deltawire._quantize as quantize
import fp8_oracle as oracle
import numpy as np
import pytest
import torch
from deltawire import Fp8
from deltawire._model import ModelTensor
from hypothesis import given, settings
from hypothesis import strategies as st

GRANULARITIES: list[Any] = ["tensor", "channel", (128, 128), (3, 5), (1, 7)]


def quantized(weight: torch.Tensor, rule: Fp8) -> quantize.QuantizedWeight:
    plan = quantize.plan_of("w", tuple(weight.shape), rule)
    out = quantize.QuantizedWeight(ModelTensor("w", weight, True), plan)
    out.quantize(out.codes, out.scales)
    return out


def check(weight: torch.Tensor, rule: Fp8) -> quantize.QuantizedWeight:
    out = quantized(weight, rule)
    oracle.assert_served(weight, out.codes, out.scales, rule.granularity, rule.scale_dtype)
    return out


def test_the_oracle_decodes_as_torch_does() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64).numpy()
    assert np.array_equal(codes[:0x7F], oracle.VALUES)
    assert np.array_equal(codes[0x80:0xFF], -oracle.VALUES)
    assert math.isnan(codes[0x7F]) and math.isnan(codes[0xFF])


def bf16_patterns() -> torch.Tensor:
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("scale_dtype", ["F32", "BF16"])
@pytest.mark.parametrize(
    "amax",
    [
        448.0,  # scale 1
        1.0,
        0.0123,
        57.25,
        3.3895313892515355e38,  # the largest BF16
        2.0**-117,  # scale near the smallest normal F32
        2.0**-120,  # scale held up at it
        9.183549615799121e-41,  # the smallest BF16
    ],
)
def test_every_bf16_value(amax: float, scale_dtype: str) -> None:
    patterns = bf16_patterns()
    small = torch.where(patterns.abs().float() <= amax, patterns, torch.tensor(amax).to(torch.bfloat16))
    # NaN and infinity stay in: they may neither move the scale nor be served as a number.
    row = torch.where(patterns.isfinite(), small, patterns)
    out = check(row.reshape(256, 256), Fp8("tensor", scale_dtype=scale_dtype))
    assert out.scales.item() >= 2.0**-126
    values = out.codes.view(torch.uint8).reshape(-1)
    assert bool((values[~row.isfinite()] == 0x7F).all())
    assert not bool((values[row.isfinite()] & 0x7F == 0x7F).any())


def test_quotients_at_and_beside_every_rounding_boundary() -> None:
    """F32 weights whose quotients are midpoints between codes, and the nearest values on both sides."""
    middle = torch.from_numpy(oracle.MIDPOINTS).float()
    assert bool((middle.double().numpy() == oracle.MIDPOINTS).all())
    beside = [torch.nextafter(middle, torch.tensor(bound)) for bound in (0.0, 1e9)]
    values = torch.from_numpy(oracle.VALUES).float()
    row = torch.cat([middle, *beside, values])
    for scale in (1.0, 2.0**-9, 2.0**20):
        weight = torch.cat([row, -row, torch.tensor([448.0])])[None] * scale
        out = check(weight, Fp8("tensor"))
        assert out.scales.item() == scale
    codes = out.codes.view(torch.uint8)[0]
    # Sharp: the three sides of a midpoint are not all one code.
    n = len(oracle.MIDPOINTS)
    assert bool((codes[n : 2 * n] < codes[2 * n : 3 * n]).all())


def test_DTY_04_a_scale_is_never_zero_nor_nan() -> None:
    weight = torch.zeros(300, 260)
    weight[0, 0] = 1.0
    weight[130, 0] = -0.0
    weight[0, 130] = math.nan
    weight[0, 131] = 2.0
    weight[130:256, 130:256] = math.inf
    weight[256, 256] = 1e-45  # amax / 448 underflows
    weight[257, 0] = -1e-38
    out = check(weight, Fp8((128, 128)))
    assert out.scales.shape == (3, 3)
    assert out.scales[0, 0] == 1 / torch.tensor(448.0) and out.scales[1, 0] == 1
    assert out.scales[0, 1] == 2 / torch.tensor(448.0)
    assert bool((out.scales >= 2.0**-126).all()) and bool(out.scales.isfinite().all())
    assert out.codes.view(torch.uint8)[130, 0] == 0x80
    for granularity in ("tensor", "channel"):
        check(weight, Fp8(granularity))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_ragged_and_stacked(granularity: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    for shape in ((1, 1), (128, 128), (129, 127), (256, 300), (7, 1025), (3, 129, 130), (2, 1, 4)):
        weight = (torch.randn(shape, generator=generator) * 0.02).to(dtype)
        out = check(weight, Fp8(granularity))
        rows, columns = shape[-2:]
        lead = list(shape[:-2])
        expected = {"tensor": [*lead, 1, 1] if lead else [1], "channel": [*lead, rows, 1]}.get(
            granularity if isinstance(granularity, str) else "",
            [*lead, -(-rows // granularity[0]), -(-columns // granularity[1])]
            if isinstance(granularity, tuple)
            else [],
        )
        assert list(out.scales.shape) == expected


def test_layouts_of_the_weight_do_not_matter() -> None:
    base = torch.randn(200, 2 * 150)
    for weight in (base[:, ::2], base.t()[10:140], base[:, :150].as_strided((100, 150), (600, 2))):
        assert not weight.is_contiguous()
        check(weight, Fp8())
    check(torch.randn(6, 50, 40).permute(2, 0, 1), Fp8("channel"))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    experts=st.integers(0, 3),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    granularity=st.sampled_from([*GRANULARITIES, (16, 64), (400, 2)]),
    tile=st.sampled_from([1, 130, 1000, 1 << 12, 1 << 20]),
    scale_dtype=st.sampled_from(["F32", "BF16"]),
    seed=st.integers(0, 1 << 30),
)
def test_any_shape_cut_into_any_tiles(
    experts: int, rows: int, columns: int, granularity: Any, tile: int, scale_dtype: str, seed: int
) -> None:
    if tile < 1000:  # a step of the loop for each few elements
        rows, columns = rows % 20 + 1, columns % 20 + 1
    generator = torch.Generator().manual_seed(seed)
    shape = (experts, rows, columns) if experts else (rows, columns)
    weight = torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator) ** 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "TILE_ELEMENTS", tile)
        check(weight, Fp8(granularity, scale_dtype=scale_dtype))


def test_temporaries_are_of_one_tile() -> None:
    for shape, cell in (
        ((1, 70000, 9000), (1, 128, 128)),
        ((1, 3, 1 << 27), (1, 1, 1 << 27)),
        ((2, 1 << 14, 1 << 14), (1, 1 << 14, 1 << 14)),
        ((4, 5000, 7000), (4, 5000, 7000)),
    ):
        covered = 0
        for tile in quantize._tiles(shape, cell):
            assert 0 < tile.elements <= quantize.TILE_ELEMENTS
            covered += tile.elements
        assert covered == math.prod(shape)
    assert quantize.TILE_ELEMENTS * 16 <= 64 << 20
