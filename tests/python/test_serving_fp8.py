"""Weights that are quantised to FP8 on the trainer: what arrives, bit by bit, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltawire as dw
import deltawire._quantize as quantize
import fp8_oracle as oracle
import numpy as np
import pytest
import torch
from deltawire import Fp8
from deltawire._model import ModelTensor
from deltawire._part import Part
from deltawire._serving import fp8_refusal
from oracle import bits, served
from safetensors.torch import load_file, save_file
from small_models import Bag, Tied, random_step

REASON = "quantised on the trainer, compared with the served codes"


class Moe(torch.nn.Module):
    """Weights of an expert layer under the names that checkpoints give them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.up_proj = Bag({"weight": torch.randn(160, 200, dtype=dtype) * 0.02})
        self.down_proj = Bag({"weight": torch.randn(200, 129, dtype=dtype) * 0.02})
        self.experts = Bag({"gate_up_proj": torch.randn(3, 130, 140, dtype=dtype) * 0.02})
        self.norm = Bag({"weight": torch.ones(200, dtype=dtype)})
        self.gate = Bag({"weight": torch.randn(3, 200)}, {"e_score_correction_bias": torch.zeros(3)})


FP8_NAMES = ("up_proj.weight", "down_proj.weight", "experts.gate_up_proj")
MOE_RULES: dict[str, Any] = {"gate.weight": torch.float32}


def rules_of(rule: Fp8) -> dict[str, Any]:
    return {"*_proj.weight": rule, "experts.gate_up_proj": rule, **MOE_RULES}


def wanted_of(model: torch.nn.Module, rules: dict[str, Fp8]) -> dict[str, tuple[str, list[int], np.ndarray]]:
    """Name -> dtype, shape and bytes that engines must hold; rules: the quantised ones."""
    out = {}
    for name, tensor in served(model, MOE_RULES).items():
        rule = rules.get(name)
        if rule is None:
            out[name] = (str(tensor.dtype), list(tensor.shape), oracle.raw(tensor))
            continue
        weight = model.get_parameter(name)
        codes, scales = oracle.quantized(weight, rule.granularity, rule.scale_dtype)
        out[name] = ("torch.float8_e4m3fn", list(codes.shape), codes.reshape(-1))
        shape = list(scales.shape)
        if rule.granularity == "tensor" and weight.dim() == 2:
            shape = [1]
        suffix = rule.suffix or ("_scale_inv" if isinstance(rule.granularity, tuple) else "_scale")
        dtype = {"F32": "torch.float32", "BF16": "torch.bfloat16"}[rule.scale_dtype]
        out[name + suffix] = (dtype, shape, oracle.scale_bytes(scales, rule.scale_dtype))
    return out


def assert_exact(held: dict[str, torch.Tensor], model: torch.nn.Module, rules: dict[str, Fp8]) -> None:
    wanted = wanted_of(model, rules)
    assert held.keys() == wanted.keys()
    for name, (dtype, shape, raw) in wanted.items():
        assert (str(held[name].dtype), list(held[name].shape)) == (dtype, shape), name
        wrong = int((oracle.raw(held[name]) != raw).sum())
        assert wrong == 0, f"{name}: {wrong} of {len(raw)} bytes differ"


def engine_of(model: torch.nn.Module, rules: dict[str, Fp8]) -> torch.nn.Module:
    """A module with the served tensors, all zero: FP8 weights as parameters, their scales as buffers."""
    engine = torch.nn.Module()
    for name, (dtype, shape, _) in wanted_of(model, rules).items():
        zeros = torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        path, _, leaf = name.rpartition(".")
        module = engine
        for part in path.split(".") if path else []:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        if "scale" in leaf or leaf == "e_score_correction_bias":
            module.register_buffer(leaf, zeros)
        else:
            module.register_parameter(leaf, torch.nn.Parameter(zeros, requires_grad=False))
    return engine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "rule",
    [Fp8(), Fp8("tensor"), Fp8("channel"), Fp8((128, 128), scale_dtype="BF16"), Fp8("channel", suffix="_s")],
    ids=["block", "tensor", "channel", "block-bf16", "channel-suffix"],
)
def test_both_ends_are_exact(url: str, tmp_path: Path, rule: Fp8, dtype: torch.dtype) -> None:
    model = Moe(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rules = dict.fromkeys(FP8_NAMES, rule)
    engine = engine_of(model, rules)
    folder = tmp_path / "engine"
    folder.mkdir()
    save_file(dict(engine.state_dict()), folder / "model.safetensors")
    publisher = dw.Publisher(
        model, optimizer, url, dtype=rules_of(rule), codings=["step", "absolute"], anchor_every=2
    )
    for name in FP8_NAMES:
        scale_name = name + rule.scale_suffix
        assert publisher.detectors[name][1] == publisher.detectors[scale_name][1] == REASON
    with dw.Subscriber(url, engine, codings=["step"]) as live:
        for version in range(4):
            if version:
                for _ in range(version):
                    random_step(model, optimizer)
                assert publisher.publish().sent > 0
            live.update()
            assert_exact(dict(engine.state_dict()), model, rules)
            with dw.Subscriber(url, folder, codings=["absolute"]) as files:
                files.update()
            assert_exact(load_file(folder / "model.safetensors"), model, rules)
        live.verify()
    anchor = next(Path(url).glob("anchors/00000002*"))
    assert load_file(anchor / "model.safetensors").keys() == engine.state_dict().keys()
    assert publisher.audit().ok


def blocks_of(edit: Callable[[torch.Tensor], None], url: str) -> tuple[dw.Version, list[np.ndarray]]:
    """Publishes an edit of a 256x256 weight; returns the version and what it changed: codes and scales."""
    generator = torch.Generator().manual_seed(11)
    # Magnitudes of 1 to 1.5, so that a block's largest is where a test puts it.
    weight = 1 + torch.rand(256, 256, generator=generator) / 2
    weight[0, 0] = weight[200, 3] = 1.75
    model = Bag({"w": weight})
    rules = {"w": Fp8()}
    engine = engine_of(model, rules)
    publisher = dw.Publisher(model, None, url, dtype=rules)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    before = [bits(engine.w).clone(), bits(engine.w_scale_inv).clone()]
    with torch.no_grad():
        edit(model.w)
    version = publisher.publish()
    assert subscriber.update().digest == version.digest
    assert_exact(dict(engine.state_dict()), model, rules)
    changed = [
        (old != bits(new)).numpy() for old, new in zip(before, (engine.w, engine.w_scale_inv), strict=True)
    ]
    assert version.changed == sum(int(each.sum()) for each in changed)
    return version, [changed[0].reshape(256, 256), changed[1].reshape(2, 2)]


def test_one_element_moves_the_scale_of_its_block(url: str) -> None:
    def edit(weight: torch.Tensor) -> None:
        weight[5, 7] = 100.0

    _, (codes, scales) = blocks_of(edit, url)
    assert scales.tolist() == [[True, False], [False, False]]
    # 1..1.75 was coded as 256..448 and is now 4..8: the edited one became the largest code.
    assert codes[:128, :128].all() and not codes[128:].any() and not codes[:, 128:].any()


def test_a_small_move_of_the_largest_changes_codes_far_away(url: str) -> None:
    def edit(weight: torch.Tensor) -> None:
        weight[0, 0] = 1.76

    _, (codes, scales) = blocks_of(edit, url)
    assert scales.tolist() == [[True, False], [False, False]]
    # The edited element is the largest code before and after; others crossed a boundary unedited.
    assert not codes[0, 0] and 50 < codes[:128, :128].sum() < 128 * 128
    assert not codes[128:].any() and not codes[:, 128:].any()


def test_the_scale_changes_and_no_code_does(url: str) -> None:
    def edit(weight: torch.Tensor) -> None:
        weight[128:, :128] *= 4

    version, (codes, scales) = blocks_of(edit, url)
    assert not codes.any() and scales.tolist() == [[False, False], [True, False]]
    assert version.changed == 1


def test_a_code_changes_and_no_scale_does(url: str) -> None:
    def edit(weight: torch.Tensor) -> None:
        weight[9, 200] = -weight[9, 200]

    version, (codes, scales) = blocks_of(edit, url)
    assert codes.sum() == 1 and codes[9, 200] and not scales.any()
    assert version.changed == 1


def test_a_weight_may_change_and_nothing_served(url: str) -> None:
    def edit(weight: torch.Tensor) -> None:
        weight[3, 3] = torch.nextafter(weight[3, 3], torch.tensor(2.0))

    version, (codes, scales) = blocks_of(edit, url)
    assert not codes.any() and not scales.any() and version.sent == 0


def test_DTY_04_blocks_become_zero_and_come_back(url: str) -> None:
    model = Bag({"w": torch.randn(130, 130)})
    rules = {"w": Fp8()}
    engine = engine_of(model, rules)
    publisher = dw.Publisher(model, None, url, dtype=rules)
    subscriber = dw.Subscriber(url, engine)
    kept = model.w.detach().clone()
    for value in (0.0, -0.0, float("nan"), float("inf"), 1e-44, 3e38):
        with torch.no_grad():
            model.w[:128, 128:] = value
        publisher.publish()
        subscriber.update()
        assert_exact(dict(engine.state_dict()), model, rules)
        scales = engine.w_scale_inv
        assert bool((scales > 0).all()) and bool(scales.isfinite().all())
        dequantised = engine.w.float()[:128, 128:] * scales[0, 1]
        assert bool(dequantised.isnan().all()) == (not np.isfinite(value))
    with torch.no_grad():
        model.w.copy_(kept)
    publisher.publish()
    subscriber.update()
    assert_exact(dict(engine.state_dict()), model, rules)


def checkpoint(folder: Path, model: torch.nn.Module, rules: dict[str, Fp8], **shapes: list[int]) -> None:
    """A checkpoint as exporters write it; shapes: other forms of the scales, by the weight's first word."""
    folder.mkdir()
    tensors = {}
    for name, (dtype, shape, raw) in wanted_of(model, rules).items():
        if "scale" in name:
            shape = shapes.get(name.split(".")[0], shape)
        torch_dtype = getattr(torch, dtype.removeprefix("torch."))
        tensors[name] = torch.from_numpy(raw.copy()).view(torch_dtype).reshape(shape)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')


@pytest.mark.parametrize(
    ("rules", "shapes"),
    [
        (dict.fromkeys(FP8_NAMES, Fp8()), {}),
        (dict.fromkeys(FP8_NAMES, Fp8(scale_dtype="BF16")), {}),
        (dict.fromkeys(FP8_NAMES, Fp8("channel")), {}),
        (dict.fromkeys(FP8_NAMES, Fp8("channel")), {"up_proj": [160], "experts": [3, 130]}),
        (dict.fromkeys(FP8_NAMES, Fp8("tensor")), {"experts": [3]}),
        (
            {
                FP8_NAMES[0]: Fp8("tensor", suffix="_scale_inv"),
                FP8_NAMES[1]: Fp8("channel", scale_dtype="BF16"),
                FP8_NAMES[2]: Fp8(suffix="_scale"),
            },
            {"up_proj": []},
        ),
    ],
    ids=["block", "block-bf16", "channel", "channel-flat", "tensor", "mixed"],
)
def test_base_decides(url: str, tmp_path: Path, rules: dict[str, Fp8], shapes: dict[str, list[int]]) -> None:
    model = Moe()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint(tmp_path / "base", model, rules, **shapes)
    held = load_file(tmp_path / "base" / "model.safetensors")
    publisher = dw.Publisher(model, optimizer, url, base=tmp_path / "base")
    assert publisher.version.sent == 0
    assert {publisher.detectors[name][1] for name in FP8_NAMES} == {REASON}
    engine = tmp_path / "engine"
    shutil.copytree(tmp_path / "base", engine)
    for _ in range(2):
        random_step(model, optimizer)
        publisher.publish()
        with dw.Subscriber(url, engine) as subscriber:
            subscriber.update()
        now = load_file(engine / "model.safetensors")
        flat = {name: tensor.reshape(held[name].shape) for name, tensor in now.items()}
        assert all(now[name].shape == held[name].shape for name in held)
        for name, (dtype, _, raw) in wanted_of(model, rules).items():
            assert str(flat[name].dtype) == dtype and np.array_equal(oracle.raw(flat[name]), raw), name
    # The rule is part of what the run is.
    publisher.close()
    inventory = next(Path(url).rglob("inventory-*.json")).read_text()
    assert "dtypes of the base checkpoint; F8_E4M3 with one" in inventory


def test_base_quantised_by_another_exporter(url: str, tmp_path: Path) -> None:
    model = Moe()
    rules = dict.fromkeys(FP8_NAMES, Fp8())
    checkpoint(tmp_path / "base", model, rules)
    file = tmp_path / "base" / "model.safetensors"
    held = load_file(file)
    held["up_proj.weight_scale_inv"] *= 1.0001
    held["up_proj.weight"].view(torch.uint8)[3:5] ^= 1
    save_file(held, file)
    publisher = dw.Publisher(model, None, url, base=tmp_path / "base")
    assert publisher.version.sent == 4 + 2 * 200
    with dw.Subscriber(url, tmp_path / "base") as subscriber:
        subscriber.update()
    assert_exact(load_file(file), model, rules)


def test_base_with_scales_that_fit_no_rule(url: str, tmp_path: Path) -> None:
    model = Bag({"w": torch.randn(256, 256), "v": torch.randn(4, 4)})
    codes = torch.zeros(256, 256).to(torch.float8_e4m3fn)
    v = torch.zeros(4, 4).bfloat16()
    file = tmp_path / "base.safetensors"
    for scales, words in (
        ({}, "neither w_scale_inv nor w_scale"),
        ({"w_scale": torch.ones(1), "w_scale_inv": torch.ones(2, 2)}, "w_scale_inv and w_scale"),
        ({"w_scale_inv": torch.ones(4, 4)}, r"scales of shape \[4, 4\] for \[256, 256\]"),
        ({"w_scale_inv": torch.ones(2, 2).half()}, "scales as F16"),
    ):
        save_file({"w": codes, "v": v, **scales}, file)
        with pytest.raises(dw.Error, match=words) as caught:
            dw.Publisher(model, None, url, base=file)
        assert caught.value.code == "unsupported" and "tensor w" in str(caught.value)
    # Static activation scales: nothing that a trainer has.
    save_file({"w": codes, "v": v, "w_scale": torch.ones(1), "input_scale": torch.ones(1)}, file)
    with pytest.raises(dw.UpdateError, match="input_scale"):
        dw.Publisher(model, None, url, base=file)
    save_file({"w": codes[:128].clone(), "v": v, "w_scale": torch.ones(1)}, file)
    with pytest.raises(dw.UpdateError, match=r"w has shape \[256, 256\], in .* it has \[128, 256\]"):
        dw.Publisher(model, None, url, base=file)


def test_wait_false_publishes_the_state_at_the_call(url: str) -> None:
    model = Moe()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rules = dict.fromkeys(FP8_NAMES, Fp8())
    engine = engine_of(model, rules)
    publisher = dw.Publisher(model, optimizer, url, dtype=rules_of(Fp8()))
    subscriber = dw.Subscriber(url, engine)
    for _ in range(3):
        random_step(model, optimizer)
        version = publisher.publish(wait=False)
        wanted = wanted_of(model, rules)
        random_step(model, optimizer)
        publisher.state_dict()  # quantises what no version has
        publisher.flush()
        assert subscriber.update().digest == version.digest
        for name, (_, _, raw) in wanted.items():
            assert np.array_equal(oracle.raw(engine.state_dict()[name]), raw), name
    publisher.publish()
    subscriber.update()
    assert_exact(dict(engine.state_dict()), model, rules)


@pytest.mark.parametrize("detector", ["auto", "snapshot"])
def test_failed_publish_loses_nothing(url: str, detector: str) -> None:
    model = Moe()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rules = dict.fromkeys(FP8_NAMES, Fp8("channel"))
    engine = engine_of(model, rules)
    publisher = dw.Publisher(model, optimizer, url, dtype=rules_of(Fp8("channel")), detector=detector)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    for _ in range(2):
        random_step(model, optimizer)
        shutil.move(url, url + "-away")
        Path(url).write_text("in the way")
        with pytest.raises(dw.Error):
            publisher.publish()
        Path(url).unlink()
        shutil.move(url + "-away", url)
    publisher.publish()
    subscriber.update()
    assert_exact(dict(engine.state_dict()), model, rules)


def test_resume(url: str) -> None:
    model = Moe()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rules = dict.fromkeys(FP8_NAMES, Fp8())
    engine = engine_of(model, rules)
    with dw.Publisher(model, optimizer, url, dtype=rules_of(Fp8())) as publisher:
        random_step(model, optimizer)
        publisher.publish()
        state = publisher.state_dict()
    for other, words in (
        (Fp8("channel"), "missing.*_scale_inv"),
        (Fp8((64, 64)), r"up_proj\.weight_scale_inv. is F32 \[3, 4\], expected F32 \[2, 2\]"),
        (Fp8(scale_dtype="BF16"), r"is BF16 \[2, 2\], expected F32"),
        (Fp8(suffix="_scale"), "missing.*_scale_inv"),
        # As many blocks of another size: nothing in names and shapes would tell.
        (Fp8((120, 128)), "is cast .F32->F8_E4M3, amax/448 a 1x120x128., expected .*a 1x128x128"),
    ):
        with pytest.raises(dw.UpdateError, match=words):
            dw.Publisher(model, optimizer, url, dtype=rules_of(other), resume=True)
    with dw.Publisher(model, optimizer, url, dtype=rules_of(Fp8()), resume=state) as publisher:
        assert publisher.version.sent == 0 and "at the bits of version 1" in publisher.version.notes[0]
        random_step(model, optimizer)
        publisher.publish()
        dw.Subscriber(url, engine).update()
        assert_exact(dict(engine.state_dict()), model, rules)
        random_step(model, optimizer)
        state = publisher.state_dict()  # of weights that no version has
    with dw.Publisher(model, optimizer, url, dtype=rules_of(Fp8()), resume=state):
        pass
    with torch.no_grad():
        model.up_proj.weight[0, 0] = 7.0  # what is served has changed: another trainer's weights
    with pytest.raises(dw.UpdateError, match="other weights would go out"):
        dw.Publisher(model, optimizer, url, dtype=rules_of(Fp8()), resume=state)


def test_anchor_needs_the_published_weights(url: str) -> None:
    model = Moe()
    publisher = dw.Publisher(model, None, url, dtype=rules_of(Fp8()))
    with torch.no_grad():
        model.up_proj.weight[0, 0] = 8.0
    publisher.publish()
    with torch.no_grad():
        model.experts.gate_up_proj[1, 0, 0] = 9.0
    with pytest.raises(dw.Error, match="2 tensors have changed since version 1"):
        publisher.anchor()
    publisher.publish()
    publisher.anchor()
    report = publisher.audit()
    assert report.ok and report.compared == report.elements
    with torch.no_grad():
        model.down_proj.weight.mul_(-1)
    report = publisher.audit()
    assert report.different == 0 and report.compared < report.elements


def test_moved_weight_is_followed_and_a_replaced_one_refused(url: str) -> None:
    model = Moe()
    rules = dict.fromkeys(FP8_NAMES, Fp8())
    engine = engine_of(model, rules)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    publisher = dw.Publisher(model, optimizer, url, dtype=rules_of(Fp8()))
    model.up_proj.weight.data = model.up_proj.weight.detach() * 1.5
    random_step(model, optimizer)
    assert publisher.publish().changed > 1000
    dw.Subscriber(url, engine).update()
    assert_exact(dict(engine.state_dict()), model, rules)
    model.up_proj.weight = torch.nn.Parameter(model.up_proj.weight.detach().clone())
    with pytest.raises(dw.Error, match=r"tensor up_proj\.weight is another object"):
        publisher.publish()


def test_memory_is_reported(url: str) -> None:
    model = Bag({"w": torch.randn(512, 512)})
    plain = dw.Publisher(model, None, url)
    before = plain.metrics()["deltawire/memory_bytes"]
    publisher = dw.Publisher(model, None, url + "2", dtype={"w": Fp8()})
    codes, scales = 512 * 512, 16 * 4
    held = publisher.metrics()["deltawire/memory_bytes"]
    assert codes + scales <= held - before < codes + scales + 1024
    assert publisher.detectors["w"] == publisher.detectors["w_scale_inv"] == ("copy_back", REASON)
    # With a second copy to compare with, where the first can't be staged beside the new codes.
    for name, options in (("asked", {"detector": "snapshot"}), ("large", {})):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quantize, "STAGED_BYTES", 512 * 512 - (name == "large"))
            other = dw.Publisher(model, None, f"{url}-{name}", dtype={"w": Fp8()}, **options)
        assert other.detectors["w"] == ("snapshot", REASON)
        assert other.metrics()["deltawire/memory_bytes"] - before >= 2 * (codes + scales)
    assert (
        publisher.version.stages.keys() >= {"write"} and "deltawire/quantize_seconds" in publisher.metrics()
    )
    assert publisher.publish().stages["quantize"] > 0
    publisher.close()
    assert publisher.metrics()["deltawire/memory_bytes"] == 0


def test_what_cannot_be_quantised_is_refused(url: str) -> None:
    model = Bag(
        {
            "w": torch.randn(8, 8),
            "norm": torch.ones(8),
            "conv": torch.randn(2, 2, 3, 3),
            "none": torch.ones(0, 4),
        },
        {"table": torch.randn(8, 8), "v_scale": torch.ones(1)},
    )
    model.register_parameter("f64", torch.nn.Parameter(torch.randn(8, 8, dtype=torch.float64)))
    model.register_parameter("v", torch.nn.Parameter(torch.randn(8, 8)))
    for name, rule, words in (
        ("norm", Fp8(), r"tensor norm can't be served as FP8: it has shape \[8\], not \[out, in\]"),
        ("conv", Fp8(), "tensor conv can't be served as FP8"),
        ("none", Fp8(), "tensor none can't be served as FP8.*without elements"),
        ("table", Fp8(), "tensor table can't be served as FP8: it is a buffer"),
        ("f64", Fp8(), "tensor f64 can't be served as FP8: it is F64"),
        ("v", Fp8("channel"), r"scales would be named v_scale.*Fp8\(suffix=\.\.\.\)"),
        ("w", "F8_E4M3", r"tensor w can't be served as F8_E4M3 by a cast.*deltawire\.Fp8"),
        ("w", torch.float8_e4m3fn, r"deltawire\.Fp8"),
    ):
        with pytest.raises(dw.Error, match=words) as caught:
            dw.Publisher(model, None, url, dtype={name: rule})
        assert caught.value.code == "unsupported"
    with pytest.raises(dw.Error, match="would quantise embeddings and norms too"):
        dw.Publisher(model, None, url, dtype=Fp8())
    with pytest.raises(dw.Error, match="'x' matches no tensor"):
        dw.Publisher(model, None, url, dtype={"x": Fp8()})
    with pytest.raises(dw.Error, match=r"tied to head\.weight"):
        dw.Publisher(Tied(), None, url, dtype={"*.weight": Fp8()})
    dw.Publisher(model, None, url, dtype={"w": Fp8(), "v": Fp8("channel", suffix="_other")}).close()


def test_a_rule_is_checked_where_it_is_made() -> None:
    for arguments, words in (
        ({"granularity": "row"}, "granularity='row'"),
        ({"granularity": (128, 0)}, "two positive integers"),
        ({"granularity": (128,)}, "two positive integers"),
        ({"granularity": (128, 1.5)}, "two positive integers"),
        ({"suffix": ""}, "suffix=''"),
        ({"scale_dtype": "F16"}, "scale_dtype='F16' is not one of F32, BF16"),
    ):
        with pytest.raises(dw.Error, match=words) as caught:
            Fp8(**arguments)
        assert caught.value.code == "invalid_argument"
    assert Fp8([64, 32]) == Fp8((64, 32)) and Fp8(scale_dtype=torch.bfloat16).scale_dtype == "BF16"
    assert Fp8(scale_dtype="float32") == Fp8()


@pytest.mark.parametrize(("detector", "inference"), [("auto", True), ("snapshot", False)])
def test_through_torch_operations_and_inference_mode(url: str, detector: str, inference: bool) -> None:
    """As on an accelerator; and opened where torch makes tensors that can't be written later."""
    model = Moe()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rules = dict.fromkeys(FP8_NAMES, Fp8())
    engine = engine_of(model, rules)
    with torch.inference_mode(inference):
        publisher = dw.Publisher(
            model, optimizer, url, dtype=rules_of(Fp8()), detector=detector, _backend="torch"
        )
    subscriber = dw.Subscriber(url, engine)
    for mode in (False, inference, False):
        random_step(model, optimizer)
        with torch.inference_mode(mode):
            version = publisher.publish()
        assert version.notes == ()
        subscriber.update()
        assert_exact(dict(engine.state_dict()), model, rules)


def test_a_part_of_a_weight_is_refused() -> None:
    part = ModelTensor("w", torch.zeros(2, 8), True, part=Part((4, 8), (2, 0), (2, 8)))
    assert "this process holds 16 of its elements" in fp8_refusal(part)
    assert not fp8_refusal(ModelTensor("w", torch.zeros(2, 8), True))


def test_weights_that_are_fp8_in_the_trainer_are_served_as_stored(url: str, tmp_path: Path) -> None:
    codes = torch.randn(64, 64).to(torch.float8_e4m3fn)
    model = Bag({"w": codes}, {"w_scale_inv": torch.rand(1, 1)})
    save_file({"w": codes.clone(), "w_scale_inv": model.w_scale_inv.clone()}, tmp_path / "base.safetensors")
    publisher = dw.Publisher(model, None, url, base=tmp_path / "base.safetensors")
    assert publisher.version.sent == 0 and publisher.detectors["w"][1] != REASON
    model.w.view(torch.uint8)[3, 4] ^= 1
    publisher.publish()
    with dw.Subscriber(url, tmp_path / "base.safetensors") as subscriber:
        subscriber.update()
    assert bool((bits(load_file(tmp_path / "base.safetensors")["w"]) == bits(model.w)).all())


def test_the_first_rule_decides(url: str) -> None:
    model = Moe()
    rules: dict[str, Any] = {"up_*": None, "norm.*": "BF16", "gate.weight": None, "*.weight": Fp8("tensor")}
    publisher = dw.Publisher(model, None, url, dtype=rules)
    assert {name for name, (_, why) in publisher.detectors.items() if why == REASON} == {
        "down_proj.weight",
        "down_proj.weight_scale",
    }


def test_transformers_fp8_layer_follows(url: str) -> None:
    finegrained = pytest.importorskip("transformers.integrations.finegrained_fp8")
    model = torch.nn.Sequential(torch.nn.Linear(200, 160, bias=False), torch.nn.Linear(160, 130))
    rules = {"0.weight": Fp8(), "1.weight": Fp8("tensor", suffix="_scale_inv")}
    engine = torch.nn.Sequential(
        finegrained.FP8Linear(200, 160, block_size=(128, 128)),
        finegrained.FP8Linear(160, 130, block_size=None, has_bias=True),
    )
    engine[1].bias = torch.nn.Parameter(torch.zeros(130, dtype=torch.bfloat16))
    # That layer has one scale without a dimension: what a base says, and a rule can't.
    engine[1].weight_scale_inv = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    publisher = dw.Publisher(model, optimizer, url, dtype=dict(rules))
    subscriber = dw.Subscriber(url, engine)
    for _ in range(2):
        random_step(model, optimizer)
        publisher.publish()
        subscriber.update()
        assert_exact(dict(engine.state_dict()), model, rules)
    layer = engine[0]
    dequantised = (
        layer.weight.float()
        * layer.weight_scale_inv.repeat_interleave(128, 0)[:160].repeat_interleave(128, 1)[:, :200]
    )
    error = (dequantised - model[0].weight).abs()
    assert bool((error <= model[0].weight.abs() / 16 + 1e-4).all())


def test_rules_longer_than_an_inventory_has_room_for(url: str) -> None:
    model = Bag({f"w{i}": torch.randn(2, 4) for i in range(90)})
    texts = []
    for last in (Fp8("channel"), Fp8("tensor")):
        rules: dict[str, Any] = {f"w{i}": Fp8("channel") for i in range(89)} | {"w89": last}
        dw.Publisher(model, None, f"{url}-{last.granularity}", dtype=rules).close()
        inventory = next(Path(f"{url}-{last.granularity}").rglob("inventory-*.json")).read_text()
        texts.append(json.loads(inventory)["cast_rule"])
        assert texts[-1].startswith("w0 as F8_E4M3 with one F32 scale a channel in X_scale; w1 as")
        assert len(texts[-1].encode()) == 4096
    # What was cut off still counts.
    assert texts[0] != texts[1] and texts[0][:4000] == texts[1][:4000]
