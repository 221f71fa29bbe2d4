"""Coding `open`: a stock safetensors file that ten lines of numpy apply, and that deltawire proves."""

from __future__ import annotations

import re
from pathlib import Path

import foreign
import numpy as np
import pytest
from cli_driver import Tensor, deltawire, publish, read_checkpoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "open.md"


def ten_lines():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 11  # ten and a docstring
    scope: dict = {}
    exec(code, scope)
    return scope["apply_open"]


@pytest.fixture
def patch(tmp_path, pair):
    path = tmp_path / "p.safetensors"
    report = deltawire("diff", pair.old_path, pair.new_path, "-o", path, "--coding", "open", "--json").json
    assert report["coding"] == "open" and report["bytes"] == path.stat().st_size
    return path


def test_the_pages_ten_lines_apply_it(pair, patch):
    weights = {name: tensor.array.copy() for name, tensor in pair.old.items()}
    ten_lines()(patch, weights)
    for name, tensor in pair.new.items():
        assert weights[name].tobytes() == tensor.array.tobytes(), name


def test_apply_proves_it_and_verify_knows_it(tmp_path, pair, patch):
    out = tmp_path / "out.safetensors"
    applied = deltawire("apply", pair.old_path, patch, "-o", out, "--json").json
    assert read_checkpoint(out) == pair.new
    assert deltawire("verify", patch, "--json").json["digest"] == applied["digest"]
    assert "open patch" in deltawire("inspect", patch).stdout


def test_it_has_the_layout_of_trl(pair, patch):
    tensors, metadata = foreign.read_container(patch.read_bytes())
    assert metadata["format"] == "sparse_weight_patch" and metadata["encoding"] == "gap_delta"
    assert (metadata["version"], metadata["sparse"]) == ("1", "True")
    names = {name[:-4] for name in tensors if name.endswith(".val")}
    assert names == {name for name in pair.old if pair.old[name] != pair.new[name]}
    assert "same" not in names and "empty" not in names
    for name in names:
        dtype, shape, _ = tensors[f"{name}.idx"]
        assert dtype in ("U16", "U32") and shape == tensors[f"{name}.val"][1]
    assert tensors["f8.val"][0] == "F8_E4M3" and tensors["scalar.val"][:2] == ("F32", [1])


def test_another_base_is_refused_and_nothing_written(tmp_path, pair, patch):
    out = tmp_path / "out.safetensors"
    done = deltawire("apply", pair.new_path, patch, "-o", out, expect=3)
    assert "wrong_base" in done.stderr and not out.exists()


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9, 0.99])
def test_damage_is_found(tmp_path, pair, patch, at):
    file = bytearray(patch.read_bytes())
    file[int(len(file) * at)] ^= 4
    patch.write_bytes(file)
    out = tmp_path / "out.safetensors"
    assert "corrupt" in deltawire("apply", pair.old_path, patch, "-o", out, expect=3).stderr
    assert deltawire("verify", patch, expect=1)
    assert not out.exists()


def test_nothing_changed(tmp_path, pair):
    patch = tmp_path / "p.safetensors"
    deltawire("diff", pair.old_path, pair.old_path, "-o", patch, "--coding", "open")
    out = tmp_path / "out.safetensors"
    deltawire("apply", pair.old_path, patch, "-o", out)
    assert read_checkpoint(out) == pair.old


def test_a_publisher_writes_it_and_a_subscriber_proves_it(tmp_path):
    torch = pytest.importorskip("torch")
    import deltawire as dw

    torch.manual_seed(5)
    model = torch.nn.Linear(64, 64, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    url = str(tmp_path / "run")
    with dw.Publisher(model, optimizer, url, codings=["class", "open"]) as publisher:
        engine = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
        subscriber = dw.Subscriber(url, engine, codings=["open"])
        subscriber.update()
        for step in range(3):
            model(torch.full((2, 64), float(step + 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            publisher.publish()
            version = subscriber.update()
            assert version.number == step + 1 and not version.notes
            assert torch.equal(engine.weight.view(torch.int16), model.weight.bfloat16().view(torch.int16))
    parts = list((tmp_path / "run").rglob("*part*.safetensors"))
    weights = [foreign.read_container(part.read_bytes()) for part in parts]
    assert any("weight.idx" in tensors for tensors, _ in weights)


def test_a_run_may_have_no_other_coding(tmp_path, pair):
    run, engine = tmp_path / "run", tmp_path / "engine.safetensors"
    publish("--codings", "open", "--base", run, pair.old_path, pair.new_path)
    engine.write_bytes(pair.old_path.read_bytes())
    deltawire("follow", run, engine, "--once")
    assert read_checkpoint(engine) == pair.new
    assert "open" in deltawire("log", run).stdout
    assert deltawire("verify", run).code == 0


def test_bits_of_every_kind_go_through(tmp_path):
    from cli_driver import write_file

    old = np.array([0x0000, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0, 0x7F80, 0x0001, 0x8001], np.uint16)
    new = np.array([0x8000, 0x0000, 0x7FC1, 0x7FC0, 0x7FC0, 0xFF80, 0x8001, 0x0001], np.uint16)
    paths = [
        write_file(tmp_path / f"{i}.safetensors", {"w": Tensor("bfloat16", x)})
        for i, x in enumerate((old, new))
    ]
    patch = tmp_path / "p.safetensors"
    assert deltawire("diff", *paths, "-o", patch, "--coding", "open", "--json").json["changed"] == 8
    weights = {"w": old.copy()}
    ten_lines()(patch, weights)
    assert (weights["w"] == new).all()
