"""Names, ties, layouts and dtypes of what is published (rows LAY and DTY of docs/failures.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from oracle import assert_exact, bits, engine_of, served
from safetensors.torch import load_file, save_file
from small_models import Bag, Mlp, Tied, random_step, train_step


def published_names(publisher: dw.Publisher) -> set[str]:
    return set(publisher.detectors)


def follow(
    model: torch.nn.Module,
    url: str,
    engine: torch.nn.Module,
    rules: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[dw.Publisher, dw.Subscriber]:
    """Opens both ends and carries two versions across."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3) if parameters else None
    publisher = dw.Publisher(model, optimizer, url, **options)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    assert_exact(model, engine, rules)
    for _ in range(2):
        if optimizer is not None:
            random_step(model, optimizer)
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine, rules)
    return publisher, subscriber


def test_LAY_02_other_shape_is_refused(url: str, tmp_path: Path) -> None:
    save_file({"w": torch.zeros(64, 32, dtype=torch.bfloat16)}, tmp_path / "base.safetensors")
    model = Bag({"w": torch.randn(32, 64)})
    with pytest.raises(dw.UpdateError, match="w") as caught:
        dw.Publisher(model, None, url, base=tmp_path / "base.safetensors")
    assert caught.value.code == "mismatch"
    publisher = dw.Publisher(model, None, url)
    engine = Bag({"w": torch.zeros(64, 32, dtype=torch.bfloat16)})
    before = bits(engine.w).clone()
    with pytest.raises(dw.UpdateError, match="w"):
        dw.Subscriber(url, engine).update()
    assert bool((bits(engine.w) == before).all())
    publisher.close()


@pytest.mark.parametrize("change", ["drop", "add", "rename"])
def test_LAY_04_names_change_during_a_run(url: str, change: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    held = subscriber.digest
    if change in ("drop", "rename"):
        seen = model._buffers.pop("seen")
    if change == "add":
        model.register_buffer("extra", torch.zeros(2))
    if change == "rename":
        model.register_buffer("renamed", seen)
    with pytest.raises(dw.Error) as caught:
        publisher.publish()
    assert caught.value.code == "mismatch"
    expected = {"drop": ["seen"], "add": ["extra"], "rename": ["seen", "renamed"]}[change]
    assert all(name in str(caught.value) for name in expected)
    assert subscriber.update().number == 0 and subscriber.digest == held


def test_LAY_05_strided_receivers(url: str) -> None:
    model = Bag({"a": torch.randn(24, 40), "b": torch.randn(24, 40), "c": torch.randn(24, 40)})
    engine = Bag(
        {
            "a": torch.zeros(40, 24, dtype=torch.bfloat16).t(),
            "b": torch.zeros(24, 80, dtype=torch.bfloat16)[:, ::2],
            "c": torch.zeros(24 * 48, dtype=torch.bfloat16).as_strided((24, 40), (48, 1)),
        }
    )
    follow(model, url, engine)


def test_LAY_05_expanded_receiver_is_refused(url: str) -> None:
    dw.Publisher(Bag({"w": torch.randn(4, 8)}), None, url).close()
    engine = Bag({"w": torch.zeros(1, 8, dtype=torch.bfloat16).expand(4, 8)})
    with pytest.raises(dw.Error, match="w"):
        dw.Subscriber(url, engine).update()


@pytest.mark.parametrize("clone", [False, True])
def test_LAY_06_tied_head(url: str, clone: bool) -> None:
    model = Tied()
    engine = engine_of(model)
    if clone:
        engine.head.weight = torch.nn.Parameter(engine.embed.weight.detach().clone(), requires_grad=False)
    else:
        assert engine.head.weight is engine.embed.weight
    publisher, subscriber = follow(model, url, engine)
    # The name that save_pretrained keeps, not the first that the module lists.
    assert published_names(publisher) == {"embed.weight"}
    assert bool((bits(engine.head.weight) == bits(engine.embed.weight)).all())
    subscriber.verify()


def test_LAY_06_tie_by_storage_without_declaration(url: str) -> None:
    weight = torch.randn(8, 8)
    model = Bag({"first": weight, "second": weight})
    assert model.first is not model.second
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    assert published_names(publisher) == {"first"}
    # Two optimizer entries step the same memory: nothing to invert.
    assert publisher.detectors["first"] == ("snapshot", "the optimizers hold it more than once")
    subscriber = dw.Subscriber(url, engine)
    random_step(model, optimizer)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


def test_LAY_07_receiver_buffer_views_a_weight(url: str) -> None:
    model = Mlp()
    engine = engine_of(model)
    engine.register_buffer("view", engine.up.weight.detach()[:4], persistent=False)
    _, subscriber = follow(model, url, engine)
    assert engine.view.data_ptr() == engine.up.weight.data_ptr()
    assert bool((engine.view == engine.up.weight[:4]).all())
    assert subscriber.unmanaged == ["view"]


def test_LAY_10_non_contiguous_parameters(url: str) -> None:
    parameters = {
        "transposed": torch.randn(40, 24).t(),
        "sliced": torch.randn(24, 80)[:, ::2],
        "channels_last": torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last),
        "offset": torch.randn(1001)[1:],
    }
    model = Bag(parameters, {"expanded": torch.randn(1, 9).expand(5, 9)})
    assert not model.transposed.is_contiguous()
    follow(model, url, engine_of(model))


def test_LAY_12_declared_tie_with_two_storages(url: str) -> None:
    model = Tied()
    model.head.weight = torch.nn.Parameter(model.embed.weight.detach().clone())
    # Two different tensors in the trainer are two tensors, whatever the class declares.
    publisher, _ = follow(model, url, engine_of(model))
    assert published_names(publisher) == {"embed.weight", "head.weight"}


def test_views_of_one_storage(url: str) -> None:
    storage = torch.randn(64, 32)
    model = Bag({"rows": storage[:32], "left": storage[32:, :16], "right": storage[32:, 16:]})
    assert published_names(follow(model, url, engine_of(model))[0]) == {"rows", "left", "right"}


def test_overlapping_views_are_refused(url: str) -> None:
    storage = torch.randn(64, 32)
    model = Bag({"upper": storage[:40], "lower": storage[30:]})
    with pytest.raises(dw.Error, match="upper and lower overlap") as caught:
        dw.Publisher(model, None, url)
    assert caught.value.code == "unsupported"


def test_zero_size_and_scalar_tensors(url: str) -> None:
    model = Bag(
        {
            "scalar": torch.tensor(1.5),
            "none": torch.zeros(0, 4),
            "void": torch.zeros(3, 0),
            "one": torch.ones(1),
        }
    )
    publisher, _ = follow(model, url, engine_of(model))
    assert published_names(publisher) == {"scalar", "none", "void", "one"}


def test_DTY_01_many_dtypes_in_one_update(url: str) -> None:
    generator = torch.Generator().manual_seed(1)
    buffers = {
        "f16": torch.randn(33, generator=generator).half(),
        "f64": torch.randn(7, generator=generator).double(),
        "u8": torch.randint(0, 255, (13,), dtype=torch.uint8, generator=generator),
        "i8": torch.randint(-128, 127, (3, 5), dtype=torch.int8, generator=generator),
        "i32": torch.randint(-(1 << 31), 1 << 31, (9,), generator=generator).int(),
        "i64": torch.randint(-(1 << 62), 1 << 62, (5,), generator=generator),
        "flags": torch.rand(11, generator=generator) < 0.5,
        "f8": torch.randn(17, generator=generator).to(torch.float8_e4m3fn),
        "complex": torch.randn(4, dtype=torch.complex64, generator=generator),
    }
    model = Bag({"w": torch.randn(65, 33, generator=generator), "h": torch.randn(31).half()}, buffers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for turn in range(3):
        random_step(model, optimizer)
        for name in buffers:
            data = getattr(model, name)
            data.view(torch.uint8).view(-1)[turn] ^= 1
        publisher.publish()
        subscriber.update()
        for name, tensor in served(model).items():
            assert torch.equal(bits_of_any(tensor), bits_of_any(getattr(engine, name))), name


def bits_of_any(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize(
    ("dtype", "rules"),
    [
        (None, {"router.e_score_correction_bias": None, "A_log": None, "q_scale": None}),
        (torch.float32, dict.fromkeys(["w", "router.e_score_correction_bias", "A_log", "q_scale"])),
        (
            "float16",
            {"w": torch.float16, "router.e_score_correction_bias": None, "A_log": None, "q_scale": None},
        ),
        ({"w": None}, {"w": None, "router.e_score_correction_bias": None, "A_log": None, "q_scale": None}),
        (
            {"*A_log": "BF16", "router.*": torch.float16},
            {"A_log": torch.bfloat16, "router.e_score_correction_bias": torch.float16, "q_scale": None},
        ),
    ],
)
def test_DTY_02_served_dtypes(url: str, dtype: Any, rules: dict[str, Any]) -> None:
    model = Bag({"w": torch.randn(40, 8), "A_log": torch.randn(16), "q_scale": torch.rand(4)})
    model.router = Bag({"e_score_correction_bias": torch.randn(8)})
    publisher, _ = follow(model, url, engine_of(model, rules), rules, dtype=dtype)
    # Changes below BF16's resolution reach what is served in FP32.
    assert publisher.version.sent > 0


def test_DTY_02_dtype_rules_must_match(url: str) -> None:
    model = Mlp()
    with pytest.raises(dw.Error, match=r"'up\.wieght' matches no tensor"):
        dw.Publisher(model, None, url, dtype={"up.wieght": torch.float32})
    with pytest.raises(dw.Error, match="'float7' is not a dtype"):
        dw.Publisher(model, None, url, dtype="float7")
    with pytest.raises(dw.Error, match="no cast from F32 to F64"):
        dw.Publisher(model, None, url, dtype="float64")


def test_LAY_11_rules_match_whole_names(url: str) -> None:
    model = torch.nn.Module()
    model.mlp = torch.nn.Module()
    model.mlp.gate = Bag({"w": torch.randn(8)})
    model.mlp.gate_proj = Bag({"w": torch.randn(8)})
    model.mlpXgate = Bag({"w": torch.randn(8)})
    rules = {"mlp.gate.w": None}
    follow(model, url, engine_of(model, rules), rules, dtype=rules)


def test_DTY_03_small_steps_never_drift(url: str) -> None:
    generator = torch.Generator().manual_seed(3)
    start = torch.randint(-(1 << 15), 1 << 15, (512,), generator=generator, dtype=torch.int32).to(torch.int16)
    model = Bag({"w": start.view(torch.bfloat16)})
    engine = engine_of(model)
    publisher = dw.Publisher(model, None, url, codings=["step", "absolute"])
    subscribers = [(engine_of(model), coding) for coding in ("step", "absolute")]
    followers = [(engine, dw.Subscriber(url, engine, codings=[coding])) for engine, coding in subscribers]
    for _ in range(60):
        step = torch.randint(-3, 4, (512,), generator=generator, dtype=torch.int16)
        model.w.data.view(torch.int16).add_(step)
        publisher.publish()
        for engine, subscriber in followers:
            subscriber.update()
            assert_exact(model, engine)


def test_DTY_04_quantised_codes_and_scales(url: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    model = Bag({}, {"codes": codes, "scale": torch.tensor([0.0, -0.0])})
    engine = engine_of(model)
    publisher = dw.Publisher(model, None, url)
    subscriber = dw.Subscriber(url, engine)
    for code in (0x7F, 0xFF, 0x80):
        model.codes.view(torch.uint8)[7] = code
        publisher.publish()
        subscriber.update()
        assert torch.equal(bits_of_any(model.codes), bits_of_any(engine.codes))
        assert torch.equal(bits_of_any(model.scale), bits_of_any(engine.scale))


def test_parameter_that_changed_its_form_is_an_error(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    publisher = dw.Publisher(model, optimizer, url)
    kept = model.up.weight.data
    model.up.weight.data = torch.zeros(48, 31)
    with pytest.raises(dw.Error, match=r"tensor up\.weight is not what it was.*open a new one"):
        publisher.publish()
    model.zero_grad()
    with pytest.raises(dw.Error, match=r"tensor up\.weight"):
        optimizer.step()
    publisher.close()
    model.up.weight.data = kept
    train_step(model, optimizer)  # nobody watches any more
    engine = engine_of(model)
    with dw.Publisher(model, optimizer, url, resume=True):
        dw.Subscriber(url, engine).update()
    assert_exact(model, engine)


def test_replaced_parameter_is_an_error(url: str) -> None:
    model = Mlp()
    publisher = dw.Publisher(model, torch.optim.AdamW(model.parameters()), url)
    model.down.weight = torch.nn.Parameter(model.down.weight.detach().clone())
    with pytest.raises(dw.Error, match=r"tensor down\.weight is another object"):
        publisher.publish()


def test_tensors_without_own_memory_are_refused(url: str) -> None:
    with torch.device("meta"):
        model = Mlp()
    with pytest.raises(dw.Error, match="tensor seen is on the meta device"):
        dw.Publisher(model, None, url)
    with pytest.raises(dw.Error, match="no parameters or buffers"):
        dw.Publisher(torch.nn.Module(), None, url)


def test_data_parallel_wrapper_is_looked_through(url: str) -> None:
    model = Mlp()
    publisher = dw.Publisher(torch.nn.DataParallel(model), None, url)
    assert "up.weight" in publisher.detectors


def test_base_decides_the_served_dtypes(url: str, tmp_path: Path) -> None:
    model = Mlp()
    rules = {"norm.weight": None}
    base = tmp_path / "base"
    base.mkdir()
    save_file(served(model, rules), base / "model.safetensors")
    (base / "config.json").write_text("{}")
    engine = engine_of(model, rules)
    engine.load_state_dict(load_file(base / "model.safetensors"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    publisher = dw.Publisher(model, optimizer, url, base=base)
    assert publisher.version.sent == 0
    subscriber = dw.Subscriber(url, engine)
    assert subscriber.update().bytes < 4096  # nothing but what names the version
    train_step(model, optimizer)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine, rules)
    assert publisher.detectors["norm.weight"][0] == "capture"  # its FP32 bits are served
    with pytest.raises(dw.Error, match="base= or dtype="):
        dw.Publisher(model, optimizer, url + "2", base=base, dtype="float32")


def test_base_that_differs_is_patched(url: str, tmp_path: Path) -> None:
    model = Mlp()
    base = tmp_path / "base.safetensors"
    held = served(model)
    save_file(held, base)
    with torch.no_grad():
        model.up.weight[1] += 0.25
    publisher = dw.Publisher(model, None, url, base=base)
    assert 0 < publisher.version.changed <= 32
    engine = engine_of(model)
    engine.load_state_dict(held)
    dw.Subscriber(url, engine).update()
    assert_exact(model, engine)


def test_transformers_llama_with_tied_head(url: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    model.save_pretrained(tmp_path / "saved")
    assert published_names(publisher) == set(load_file(tmp_path / "saved" / "model.safetensors"))
    subscriber = dw.Subscriber(url, engine)
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)
    # The anchor of version 0 is a checkpoint that transformers loads.
    anchor = next(Path(url).glob("anchors/00000000*/"))
    assert (anchor / "config.json").is_file()


def test_transformers_moe_is_refused_by_name(url: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
    )
    with pytest.raises(dw.Error, match=r"mlp\.experts\.gate_up_proj.*unsupported until layouts") as caught:
        dw.Publisher(transformers.Qwen3MoeForCausalLM(config), None, url)
    assert caught.value.code == "unsupported"
