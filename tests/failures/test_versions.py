"""Versions, chains, joins and restarts (rows VER, LAY-04, LAY-12 of docs/failures.md) across processes."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from children import Child, bits_of
from craft import RunFolder, compact
from oracle import assert_exact, bits, engine_of, served
from processes import error_of, model, train_and_publish, update_folder
from safetensors.torch import load_file, save_file
from small_models import Tied, random_step


class Loop:
    """A trainer that remembers the bits of each version, and an engine that is at version 0."""

    def __init__(self, url: str, versions: int = 0, **options: Any) -> None:
        self.url = url
        self.model = model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.publisher = dw.Publisher(self.model, self.optimizer, url, **options)
        self.bits = [bits_of(served(self.model))]
        self.engine = engine_of(self.model)
        self.subscriber = dw.Subscriber(url, self.engine)
        self.subscriber.update()
        for _ in range(versions):
            self.publish()

    def publish(self) -> dw.Version:
        random_step(self.model, self.optimizer)
        version = self.publisher.publish()
        self.bits.append(bits_of(served(self.model)))
        return version

    def engine_bits(self) -> dict[str, bytes]:
        return bits_of(dict(self.engine.state_dict()))


def test_VER_04_a_lost_version_is_noticed(url: str) -> None:
    loop = Loop(url, 4)
    loop.subscriber.update(2)
    run = RunFolder(url)
    # Version 4 is delivered, version 3 is not.
    part = run.part_path(3)
    shutil.move(part, part.with_suffix(".away"))
    error = error_of(loop.subscriber.update)
    assert error.code == "not_found" and "00000003" in str(error)
    assert loop.engine_bits() == loop.bits[2] and loop.subscriber.version is not None
    assert loop.subscriber.version.number == 2
    # It comes late.
    shutil.move(part.with_suffix(".away"), part)
    assert loop.subscriber.update().number == 4
    assert loop.engine_bits() == loop.bits[4]


@pytest.mark.parametrize("lost", ["manifest", "part"])
def test_VER_04_a_full_version_goes_round_a_lost_one(url: str, lost: str) -> None:
    loop = Loop(url, 4)
    loop.subscriber.update(2)
    loop.publisher.anchor()
    run = RunFolder(url)
    (run.part_path(3) if lost == "part" else run.manifest_path(3)).unlink()
    assert loop.subscriber.update().number == 4
    assert loop.engine_bits() == loop.bits[4]


def test_VER_04_another_base_under_the_same_number(url: str) -> None:
    """A receiver whose bits are not those of its version: nothing is scattered over them."""
    loop = Loop(url, 2)
    loop.subscriber.update(1)
    loop.engine.a.data.view(torch.int16)[0, 0] ^= 0x40
    held = loop.engine_bits()
    RunFolder(url).anchor_path(0).joinpath("manifest.json").unlink()
    try:
        loop.subscriber.update(2)
    except dw.Error as error:
        assert error.code in ("wrong_base", "detector_fault", "unusable")
        assert loop.engine_bits() == held
    else:
        # The patch does not touch that element: seen when everything is read again.
        error = error_of(loop.subscriber.verify)
        assert error.code == "unusable" and " a" in str(error)


def test_VER_07_delivered_again(url: str) -> None:
    loop = Loop(url, 4)
    for _ in range(3):
        assert loop.subscriber.update(4).number == 4
        assert loop.engine_bits() == loop.bits[4]
    # A receiver that forgot that it has it, and one that was put back.
    with dw.Subscriber(url, loop.engine) as again:
        assert again.update(4).number == 4 and again.digest == loop.publisher.digest
    assert loop.engine_bits() == loop.bits[4]
    loop.subscriber.rollback()
    for _ in range(2):
        assert loop.subscriber.update(4).number == 4
        assert loop.engine_bits() == loop.bits[4]
    # And one in which half of the elements were written when its process ended.
    for share in (0.1, 0.5, 0.9):
        with dw.Subscriber(url, loop.engine) as subscriber:
            subscriber.update(3)
        new = torch.frombuffer(bytearray(loop.bits[4]["a"]), dtype=torch.bfloat16)
        written = int(new.numel() * share)
        loop.engine.a.data.view(-1)[:written] = new[:written]
        with dw.Subscriber(url, loop.engine) as subscriber:
            assert subscriber.update(4).number == 4
        assert loop.engine_bits() == loop.bits[4]


def test_VER_07_delivered_again_to_a_folder(url: str, place: Path) -> None:
    loop = Loop(url, 4)
    file = place / "weights.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in served(loop.model).items()}, file)
    for _ in range(3):
        child = Child(update_folder, url, str(file))
        assert child.receive()[0] == 4
        child.join()
        assert bits_of(load_file(file)) == loop.bits[4]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_VER_08_join_at_any_version(url: str, place: Path, start: int) -> None:
    loop = Loop(url, 2)
    loop.subscriber.update(start)
    file = place / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in loop.engine.state_dict().items()}, file)
    (RunFolder(url).anchor_path(0) / "manifest.json").unlink()  # so that only what it holds can help it
    child = Child(update_folder, url, str(file))
    assert child.receive()[0] == 2
    child.join()
    assert bits_of(load_file(file)) == loop.bits[2]


@pytest.mark.parametrize("anchor", [False, True])
def test_VER_08_join_with_one_changed_bit(url: str, place: Path, anchor: bool) -> None:
    loop = Loop(url, 2)
    if not anchor:
        (RunFolder(url).anchor_path(0) / "manifest.json").unlink()
    file = place / "weights.safetensors"
    tensors = {name: tensor.clone() for name, tensor in loop.engine.state_dict().items()}
    tensors["b"].view(torch.int16)[96] ^= 1
    save_file(tensors, file)
    held = file.read_bytes()
    subscriber = dw.Subscriber(url, file)
    if anchor:
        assert subscriber.update().number == 2
        assert bits_of(load_file(file)) == loop.bits[2]
        return
    error = error_of(subscriber.update)
    assert error.code in ("not_found", "wrong_base")
    assert "checkpoint" in str(error) or "anchor" in str(error)
    assert file.read_bytes() == held and subscriber.version is None


def test_VER_08_another_base_model(url: str, place: Path) -> None:
    """base=: the run has no full version; a receiver with another model is refused untouched."""
    trainee = model()
    save_file(served(trainee), place / "base.safetensors")
    publisher = dw.Publisher(trainee, None, url, base=place / "base.safetensors")
    assert publisher.version.sent == 0
    right, wrong = engine_of(trainee), engine_of(trainee)
    right.load_state_dict(load_file(place / "base.safetensors"))
    wrong.load_state_dict(served(model()))
    held = bits_of(dict(wrong.state_dict()))
    assert dw.Subscriber(url, right).update().number == 0
    error = error_of(dw.Subscriber(url, wrong).update)
    assert error.code in ("not_found", "wrong_base")
    assert bits_of(dict(wrong.state_dict())) == held


def test_VER_10_resume_from_the_newest_an_older_and_no_checkpoint(url: str, place: Path) -> None:
    """Restarted trainers, receivers at 5: numbers go on, and what goes out is what the trainer holds."""
    state = str(place / "state")
    older = str(place / "older")
    for round_, (source, options) in enumerate(
        ((None, {}), (state, {"resume": True}), (older, {"resume": True}), (None, {"resume": True}))
    ):
        Path(state).unlink(missing_ok=True) if source is None else None
        if source == older:
            shutil.copy(older, state)
        child = Child(train_and_publish, url, state, 3, options)
        told: dict[int, dict[str, bytes]] = {}
        while True:
            try:
                kind, value = child.receive()
            except EOFError:
                break
            if kind == "try":
                trying = value
            else:
                told[value] = trying
                if round_ == 0 and value == 1:
                    shutil.copy(state, older)
        child.join()
        assert sorted(told) == list(range(4 * round_, 4 * round_ + 4))
        engine = engine_of(model())
        with dw.Subscriber(url, engine) as subscriber:
            for number in sorted(told):
                subscriber.update(number)
                assert bits_of(dict(engine.state_dict())) == told[number]


def test_VER_12_an_old_run_in_the_same_place(url: str) -> None:
    old = Loop(url, 9)
    run = RunFolder(url)
    old.publisher.close()
    fresh = model()
    error = error_of(lambda: dw.Publisher(fresh, None, url))
    assert error.code == "exists" and "resume" in str(error)
    # Somebody cleared most of it away; pointer, parts and anchors of the old run stay.
    shutil.rmtree(run.path / "manifests")
    error = error_of(lambda: dw.Publisher(fresh, None, url))
    assert error.code == "exists"
    shutil.rmtree(run.path / "anchors")
    publisher = dw.Publisher(fresh, None, url)
    engine = engine_of(fresh)
    for _ in range(2):
        version = dw.Subscriber(url, engine).update()
        assert version.number == publisher.version.number < 9
        assert_exact(fresh, engine)
        fresh.b.data += 1
        publisher.publish()
    # A receiver of the old run does not follow the new one.
    error = error_of(old.subscriber.update)
    assert error.code == "wrong_run"
    assert old.engine_bits() == old.bits[0]


def test_VER_17_an_object_of_another_run(url: str, place: Path) -> None:
    """Two runs with equal names, shapes and numbers; one's files end up in the other's place."""
    one, two = Loop(url, 2), Loop(str(place / "two"), 2)
    a, b = RunFolder(url), RunFolder(str(place / "two"))
    shutil.copy(b.manifest_path(2), a.manifest_path(2))
    shutil.copytree(b.path / "updates/00000002", a.path / "updates/00000002", dirs_exist_ok=True)
    error = error_of(one.subscriber.update)
    assert error.code == "wrong_run" and two.publisher.run in str(error)
    # The manifest says this run, the part is the other's.
    shutil.copy(b.part_path(1), a.part_path(1))
    assert error_of(lambda: one.subscriber.update(1)).code == "corrupt"
    assert one.engine_bits() == one.bits[0]


def test_wrong_run_asked_for(url: str) -> None:
    loop = Loop(url, 1)
    held = engine_of(loop.model)
    before = bits_of(dict(held.state_dict()))
    error = error_of(dw.Subscriber(url, held, run="another").update)
    assert error.code == "wrong_run" and "another" in str(error)
    assert bits_of(dict(held.state_dict())) == before


@pytest.mark.parametrize("change", ["drop", "add", "rename", "shape", "dtype"])
def test_LAY_04_another_inventory_from_version_2(url: str, change: str) -> None:
    """Whoever wrote it: a receiver that is attached to one set of tensors is not moved to another."""
    loop = Loop(url, 2)
    loop.subscriber.update(1)
    run = RunFolder(url)
    inventory = json.loads(run.inventory_path().read_bytes())
    tensors = inventory["tensors"]
    if change == "drop":
        del tensors[1]
    elif change == "add":
        tensors.append({"dtype": "BF16", "name": "z", "shape": [4]})
    elif change == "rename":
        tensors[1]["name"] = "bb"
    elif change == "shape":
        tensors[0]["shape"] = tensors[0]["shape"][::-1]
    else:
        tensors[1]["dtype"] = "F16"
    text = compact(inventory).encode()
    digest = hashlib.sha256(text).hexdigest()
    (run.path / f"inventory-{digest}.json").write_bytes(text)
    run.write_manifest(2, {**run.manifest(2), "inventory": digest})
    error = error_of(loop.subscriber.update)
    assert error.code == "mismatch"
    assert loop.engine_bits() == loop.bits[1]
    joiner = engine_of(loop.model)
    held = bits_of(dict(joiner.state_dict()))
    error = error_of(dw.Subscriber(url, joiner).update)
    assert error.code in ("mismatch", "corrupt", "not_found")
    assert bits_of(dict(joiner.state_dict())) == held


@pytest.mark.parametrize("change", ["missing", "renamed", "shape", "dtype"])
@pytest.mark.parametrize("kind", ["module", "folder"])
def test_receiver_with_other_tensors(url: str, place: Path, kind: str, change: str) -> None:
    loop = Loop(url, 1)
    tensors = {name: torch.zeros_like(tensor) for name, tensor in served(loop.model).items()}
    if change == "missing":
        del tensors["b"]
    elif change == "renamed":
        tensors["bb"] = tensors.pop("b")
    elif change == "shape":
        tensors["b"] = torch.zeros(98, dtype=torch.bfloat16)
    else:
        tensors["b"] = tensors["b"].to(torch.float16)
    file = place / "weights.safetensors"
    save_file(tensors, file)
    engine = torch.nn.Module()
    for name, tensor in tensors.items():
        engine.register_buffer(name, tensor)
    held = file.read_bytes()
    error = error_of(dw.Subscriber(url, engine if kind == "module" else file).update)
    assert error.code == "mismatch" and "b" in str(error)
    assert all(not bool(tensor.any()) for tensor in tensors.values()) and file.read_bytes() == held


@pytest.mark.parametrize("kind", ["module", "folder"])
def test_LAY_12_declared_tie_with_two_storages_in_the_receiver(url: str, place: Path, kind: str) -> None:
    """The file has both tensors, the engine keeps both: both are updated, and both are proved."""
    trainee = Tied()
    optimizer = torch.optim.AdamW(trainee.parameters(), lr=1e-3)
    publisher = dw.Publisher(trainee, optimizer, url)
    engine = engine_of(trainee)
    engine.head.weight = torch.nn.Parameter(engine.embed.weight.detach().clone(), requires_grad=False)
    file = place / "weights.safetensors"
    save_file(
        {"embed.weight": engine.embed.weight.detach(), "head.weight": engine.head.weight.detach()}, file
    )
    subscriber = dw.Subscriber(url, engine if kind == "module" else file)

    def copies() -> list[torch.Tensor]:
        if kind == "folder":
            return list(load_file(file).values())
        return [engine.embed.weight.detach(), engine.head.weight.detach()]

    for _ in range(3):
        random_step(trainee, optimizer)
        publisher.publish()
        subscriber.update()
        wanted = bits(served(trainee)["embed.weight"])
        assert all(torch.equal(bits(copy_), wanted) for copy_ in copies())
    if kind == "module":
        # A copy that went its own way is named.
        engine.head.weight.data.view(torch.int16)[5, 5] ^= 1
        assert error_of(subscriber.verify).code == "unusable"


def test_all_changed_empty_and_all_changed_again(url: str) -> None:
    loop = Loop(url)
    start = copy.deepcopy(loop.model.state_dict())
    for scale in (-1.0, 1.0, 0.0, -1.0):
        for name, tensor in loop.model.state_dict().items():
            tensor.copy_(start[name] * scale)
        version = loop.publisher.publish()
        assert loop.subscriber.update().number == version.number
        assert_exact(loop.model, loop.engine)
        empty = loop.publisher.publish()
        assert empty.sent == 0 and loop.subscriber.update().number == version.number + 1
        assert_exact(loop.model, loop.engine)
