"""Versions, restarts, receivers and errors as Python sees them (rows VER and OBS of docs/failures.md)."""

from __future__ import annotations

import copy
import gc
import json
import logging
import pickle
import queue
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from oracle import assert_exact, bits, engine_of, served
from safetensors.torch import load_file, save_file
from small_models import Mlp, train_step


class Loop:
    """A trainer with its publisher."""

    def __init__(self, url: str, **options: Any) -> None:
        self.model = Mlp()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.publisher = dw.Publisher(self.model, self.optimizer, url, **options)

    def step(self) -> None:
        train_step(self.model, self.optimizer)

    def publish(self, **options: Any) -> dw.Version:
        self.step()
        return self.publisher.publish(**options)


def test_version_says_what_happened(url: str) -> None:
    loop = Loop(url)
    assert loop.publisher.version.number == 0 and loop.publisher.version.base is None
    version = loop.publish()
    assert (version.number, version.base, version.steps) == (1, 0, 1)
    assert 0 < version.changed + version.uncertain <= version.sent <= version.total
    assert version.bytes > 0 and version.seconds > 0 and len(version.digest) == 32
    assert version.detectors["inversion"].tensors == 6
    assert version.detectors["fence"].elements == 3
    assert loop.publisher.digest == version.digest and loop.publisher.run
    with pytest.raises(AttributeError):
        version.number = 2  # type: ignore[misc]


def test_VER_02_empty_update_is_a_version(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    assert subscriber.version is None
    loop.publish()
    subscriber.update()
    version = loop.publisher.publish()
    assert (version.number, version.sent, version.steps) == (2, 0, 0)
    assert subscriber.update().number == 2
    live = subscriber.version
    assert live is not None and live.number == 2
    assert_exact(loop.model, engine)


def test_VER_03_failed_update_leaves_the_version(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    held = {name: bits(tensor).clone() for name, tensor in engine.state_dict().items()}
    loop.publish()
    part = next(Path(url).glob("updates/00000001/*.safetensors"))
    part.chmod(0o644)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(dw.UpdateError) as caught:
        subscriber.update()
    assert caught.value.code == "corrupt"
    live = subscriber.version
    assert live is not None and live.number == 0 and subscriber.digest == live.digest
    assert all(bool((bits(t) == held[name]).all()) for name, t in engine.state_dict().items())
    metrics = subscriber.metrics()
    assert (metrics["deltawire/failed"], metrics["deltawire/failures_total"]) == (1.0, 1.0)
    # A whole checkpoint beside a later version is a way out.
    loop.publish()
    loop.publisher.anchor()
    assert subscriber.update().number == 2
    assert_exact(loop.model, engine)
    assert subscriber.metrics()["deltawire/failed"] == 0.0


def test_stage_then_commit(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    before = bits(engine.up.weight).clone()
    loop.publish()
    staged = subscriber.stage()
    assert staged.number == 1
    assert bool((bits(engine.up.weight) == before).all())
    assert subscriber.commit().number == 1
    assert_exact(loop.model, engine)
    with pytest.raises(dw.Error, match="stage"):
        subscriber.commit()


def test_chosen_version(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    wanted = {}
    for _ in range(3):
        version = loop.publish()
        wanted[version.number] = served(loop.model)
    assert subscriber.update(2).number == 2
    assert all(bool((bits(engine.state_dict()[n]) == bits(t)).all()) for n, t in wanted[2].items())
    assert subscriber.update().number == 3
    assert_exact(loop.model, engine)
    with pytest.raises(dw.Error) as caught:
        subscriber.update(9)
    assert caught.value.code == "not_found"


def test_rollback_and_pin(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    before = {name: bits(tensor).clone() for name, tensor in engine.state_dict().items()}
    loop.publish()
    subscriber.update()
    assert subscriber.rollback().number == 0
    assert subscriber.pinned
    assert all(bool((bits(t) == before[name]).all()) for name, t in engine.state_dict().items())
    with pytest.raises(dw.Error):
        subscriber.update()
    with pytest.raises(dw.Error):
        subscriber.rollback()
    subscriber.unpin()
    assert subscriber.update().number == 1
    assert_exact(loop.model, engine)


def test_verify_notices_a_changed_bit(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    subscriber.verify()
    engine.down.weight.data.view(torch.int16)[0, 0] ^= 1
    with pytest.raises(dw.EngineError, match=r"down\.weight") as caught:
        subscriber.verify()
    assert caught.value.code == "unusable"


def test_wait_false_and_flush(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    for number in (1, 2, 3):
        version = loop.publish(wait=False)
        assert version.number == number
        loop.publisher.flush()
        assert subscriber.update().digest == version.digest
        assert_exact(loop.model, engine)
    loop.publish(wait=False)
    frozen = served(loop.model)
    loop.step()  # weights move on while the upload runs
    loop.publisher.close()
    assert subscriber.update().number == 4
    assert all(bool((bits(engine.state_dict()[n]) == bits(t)).all()) for n, t in frozen.items())


def test_VER_10_resume_goes_on_counting(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(3):
        loop.publish()
    subscriber.update()
    state = loop.publisher.state_dict()
    assert state == pickle.loads(pickle.dumps(state))
    run = loop.publisher.run
    loop.publisher.close()

    with pytest.raises(dw.Error) as caught:
        dw.Publisher(loop.model, loop.optimizer, url)
    assert caught.value.code == "exists" and "resume" in str(caught.value)

    for known, expected in ((False, 4), (True, 6)):
        resume = state if known else True
        with dw.Publisher(loop.model, loop.optimizer, url, resume=resume) as publisher:
            assert publisher.run == run
            assert (publisher.version.number, publisher.version.sent) == (expected, 0)
            loop.step()
            assert publisher.publish().number == expected + 1
            subscriber.update()
            assert_exact(loop.model, engine)
            state = publisher.state_dict()


def test_VER_10_resume_from_an_older_checkpoint(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    loop.publish()
    saved = copy.deepcopy((loop.model.state_dict(), loop.optimizer.state_dict(), loop.publisher.state_dict()))
    loop.step()
    unpublished = copy.deepcopy(loop.model.state_dict())
    loop.publisher.publish()
    loop.publish()
    subscriber.update()
    loop.publisher.close()

    model = Mlp()
    model.load_state_dict(saved[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(saved[1])
    with dw.Publisher(model, optimizer, url, resume=saved[2]) as publisher:
        assert publisher.version.number == 4  # never reused
        subscriber.update()
        assert_exact(model, engine)
        train_step(model, optimizer)
        assert publisher.publish().notes == ()
        subscriber.update()
        assert_exact(model, engine)

    # Bits that no version ever had: a full checkpoint.
    model.load_state_dict(unpublished)
    with torch.no_grad():
        model.up.weight += 1
    with dw.Publisher(model, optimizer, url, resume=True) as publisher:
        assert any("full checkpoint" in note for note in publisher.version.notes)
        subscriber.update()
        assert_exact(model, engine)


def test_VER_11_another_models_weights_are_refused(url: str) -> None:
    loop = Loop(url)
    loop.publish()
    state = loop.publisher.state_dict()
    loop.publisher.close()
    reference = Mlp()  # same names, other weights
    with pytest.raises(dw.Error) as caught:
        dw.Publisher(reference, None, url, resume=state)
    assert caught.value.code == "mismatch"
    with pytest.raises(dw.Error) as caught:
        dw.Publisher(loop.model, loop.optimizer, url, resume={**state, "run": "0" * 32})
    assert caught.value.code == "wrong_run"
    with pytest.raises(dw.Error, match="state_dict"):
        dw.Publisher(loop.model, loop.optimizer, url, resume={"number": 3})
    other = Mlp(width=40)
    with pytest.raises(dw.Error, match=r"up\.weight"):
        dw.Publisher(other, None, url, resume=True)


def test_VER_17_two_publishers_on_one_run(url: str) -> None:
    first = Loop(url)
    first.publish()
    second = dw.Publisher(first.model, first.optimizer, url, resume=True)
    first.step()
    second.publish()
    with pytest.raises(dw.PeerError) as caught:
        first.publisher.publish()
    assert caught.value.code == "fenced"
    with pytest.raises(dw.PeerError):
        first.publisher.publish()
    engine = engine_of(first.model)
    dw.Subscriber(url, engine).update()
    assert_exact(first.model, engine)


def test_VER_12_runs_are_kept_apart(url: str, tmp_path: Path) -> None:
    loop = Loop(url, run="first")
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    assert subscriber.run == "first"
    loop.publisher.close()
    shutil.rmtree(url)
    Loop(url, run="second").publish()
    with pytest.raises(dw.Error) as caught:
        subscriber.update()
    assert caught.value.code == "wrong_run"
    with pytest.raises(dw.Error) as caught:
        dw.Subscriber(url, engine, run="first").update()
    assert caught.value.code == "wrong_run"


def test_engine_starts_before_its_trainer(url: str) -> None:
    engine = engine_of(Mlp())
    subscriber = dw.Subscriber(url, engine)
    with pytest.raises(dw.Error) as caught:
        subscriber.update()
    assert caught.value.code == "not_found"
    loop = Loop(url)
    assert subscriber.update().number == 0
    assert_exact(loop.model, engine)


def ended(follower: dw.Follower) -> bool:
    follower._thread.join(60)
    return not follower.running


def test_follow(url: str) -> None:
    engine = engine_of(Mlp())
    events: queue.Queue[Any] = queue.Queue()

    @contextmanager
    def pause() -> Iterator[None]:
        events.put("paused")
        yield
        events.put("resumed")

    subscriber = dw.Subscriber(url, engine)
    with subscriber.follow(poll_seconds=0.01, on_commit=events.put, pause=pause) as follower:
        with pytest.raises(dw.Error, match="followed already"):
            subscriber.follow()
        loop = Loop(url)
        for number in range(3):
            assert [events.get(timeout=60) for _ in range(2)] == ["paused", "resumed"]
            assert events.get(timeout=60).number == number
            assert subscriber.version is not None and subscriber.version.number == number
            assert_exact(loop.model, engine)
            if number < 2:
                loop.publish()
    assert not follower.running and follower.error is None and events.empty()


def test_follow_surfaces_errors(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)

    def explode(version: dw.Version) -> None:
        raise RuntimeError(f"no room for {version.number}")

    subscriber = dw.Subscriber(url, engine)
    follower = subscriber.follow(poll_seconds=0.01, on_commit=explode)
    assert ended(follower)
    assert isinstance(follower.error, RuntimeError)
    with pytest.raises(RuntimeError, match="no room for 0"):
        subscriber.update()
    subscriber.update()  # said once
    follower.stop()
    follower = subscriber.follow(poll_seconds=0.01, on_commit=explode)
    loop.publish()
    assert ended(follower)
    with pytest.raises(RuntimeError):
        follower.stop()


def test_follow_waits_while_pinned(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    loop.publish()
    subscriber.update()
    subscriber.rollback()
    committed: queue.Queue[dw.Version] = queue.Queue()
    with subscriber.follow(poll_seconds=0.01, on_commit=committed.put):
        loop.publish()
        assert subscriber.version is not None and subscriber.version.number == 0
        subscriber.unpin()
        assert committed.get(timeout=60).number == 2
    assert_exact(loop.model, engine)


def test_calls_from_many_threads(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    failures: list[BaseException] = []

    def hammer() -> None:
        try:
            for _ in range(20):
                subscriber.update()
                subscriber.verify()
                subscriber.metrics()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        loop.publish()
    for thread in threads:
        thread.join()
    assert not failures
    subscriber.update()
    assert_exact(loop.model, engine)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_folder_target(url: str, tmp_path: Path, kind: str) -> None:
    loop = Loop(url)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    file = folder / "model.safetensors"
    save_file({name: torch.zeros_like(t) for name, t in served(loop.model).items()}, file)
    target = folder if kind == "folder" else file
    with dw.Subscriber(url, target) as subscriber:
        for _ in range(2):
            version = loop.publish()
            assert subscriber.update().digest == version.digest
            held = load_file(file)
            assert all(bool((bits(held[n]) == bits(t)).all()) for n, t in served(loop.model).items())
        with pytest.raises(dw.Error) as caught:
            dw.Subscriber(url, target)
        assert caught.value.code == "exists"
    loop.publish()
    with dw.Subscriber(url, target) as subscriber:
        subscriber.update()
        subscriber.verify()
    held = load_file(file)
    assert all(bool((bits(held[n]) == bits(t)).all()) for n, t in served(loop.model).items())


def test_folder_target_needs_no_torch(url: str, tmp_path: Path) -> None:
    loop = Loop(url)
    loop.publish()
    file = tmp_path / "engine.safetensors"
    save_file({name: torch.zeros_like(t) for name, t in served(loop.model).items()}, file)
    program = (
        "import sys, deltawire\n"
        "print(deltawire.Subscriber(sys.argv[1], sys.argv[2]).update().number, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]


def test_diff_and_apply(tmp_path: Path) -> None:
    model = Mlp()
    old, new, patch, out = (tmp_path / f"{name}.safetensors" for name in ("old", "new", "patch", "out"))
    save_file(served(model), old)
    train_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    save_file(served(model), new)
    for coding in ("step", "absolute"):
        version = dw.diff(old, new, patch, coding=coding)
        assert 0 < version.changed < version.total
        assert dw.apply(old, patch, out).digest == version.digest
        held = load_file(out)
        assert all(bool((bits(held[n]) == bits(t)).all()) for n, t in load_file(new).items())
        out.unlink()
        patch.unlink()
    dw.diff(old, new, patch)
    with pytest.raises(dw.UpdateError) as caught:
        dw.apply(new, patch, out)
    assert caught.value.code == "wrong_base" and not out.exists()
    with pytest.raises(dw.RequestError):
        dw.diff(old, tmp_path / "nothing", patch)


def test_codings_are_written_and_used(url: str) -> None:
    loop = Loop(url, codings=["step", "absolute"])
    engines = {coding: engine_of(loop.model) for coding in ("step", "absolute")}
    subscribers = {coding: dw.Subscriber(url, engine, codings=[coding]) for coding, engine in engines.items()}
    for subscriber in subscribers.values():
        subscriber.update()
    loop.publish()
    read = {coding: subscriber.update().bytes for coding, subscriber in subscribers.items()}
    assert read["step"] < read["absolute"]
    for engine in engines.values():
        assert_exact(loop.model, engine)
    with pytest.raises(dw.Error, match="zip"):
        Loop(url + "2", codings=["zip"])


def test_OBS_05_options_have_an_effect(url: str) -> None:
    loop = Loop(url, anchor_every=2, run="mine", single_writer=True, threads=1)
    assert loop.publisher.run == "mine"
    for _ in range(4):
        loop.publish()
    anchors = {path.name for path in Path(url, "anchors").iterdir()}
    assert {name[:8] for name in anchors} == {"00000000", "00000002", "00000004"}
    loop.publish()
    loop.publisher.anchor()
    assert len(list(Path(url, "anchors").iterdir())) == 4
    loop.step()
    with pytest.raises(dw.Error, match="anchor"):
        loop.publisher.anchor()


def test_OBS_01_metrics_have_the_same_keys(url: str) -> None:
    loop = Loop(url)
    subscriber = dw.Subscriber(url, engine_of(loop.model))
    empty = subscriber.metrics()
    subscriber.update()
    loop.publish()
    subscriber.update()
    with pytest.raises(dw.Error):
        subscriber.update(77)
    after = subscriber.metrics()
    assert empty.keys() == after.keys() and after["deltawire/failed"] == 1.0
    assert loop.publisher.metrics().keys() >= loop.publisher.version.metrics().keys()
    for metrics in (after, loop.publisher.metrics()):
        assert all(isinstance(value, float) for value in metrics.values())
    assert loop.publisher.metrics()["deltawire/changed_share"] > 0
    shutil.rmtree(url)
    Path(url).write_text("not a folder")
    loop.step()
    keys = loop.publisher.metrics().keys()
    with pytest.raises(dw.Error) as caught:
        loop.publisher.publish()
    assert caught.value.code in ("io", "not_found")
    assert loop.publisher.metrics().keys() == keys
    assert loop.publisher.metrics()["deltawire/failures_total"] == 1.0


def test_failed_publish_loses_nothing(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    loop.publish()
    shutil.move(url, url + "-away")
    Path(url).write_text("in the way")
    with pytest.raises(dw.Error):
        loop.publish()
    Path(url).unlink()
    shutil.move(url + "-away", url)
    version = loop.publish()
    assert version.steps == 2 and version.number >= 2
    subscriber.update()
    assert_exact(loop.model, engine)


def test_audit(url: str) -> None:
    loop = Loop(url)
    loop.publish()
    report = loop.publisher.audit()
    assert report.ok and report.number == 1 and report.compared == report.elements
    loop.step()
    assert loop.publisher.audit().different == 0
    loop.publisher.publish()
    part = next(Path(url).glob("updates/00000002/*.safetensors"))
    part.chmod(0o644)
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(dw.Error):
        loop.publisher.audit()


def test_step_audit(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWIRE_AUDIT_STEPS", "4")
    monkeypatch.setenv("DELTAWIRE_AUDIT_REPORT", str(tmp_path / "audit.json"))
    loop = Loop(url)
    for _ in range(5):
        loop.publish()
    report = json.loads((tmp_path / "audit.json").read_text())
    assert report["steps"] == 4 and report["tensors"] == 6 and report["compared"] == 4 * report["elements"]
    assert report["changed"] > 0
    assert (report["missed"], report["wrong_old"], report["skipped"]) == (0, 0, 0)


def test_OBS_02_receiver_without_a_tensor_is_refused(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    del engine.down
    before = bits(engine.up.weight).clone()
    with pytest.raises(dw.UpdateError, match=r"down\.weight") as caught:
        dw.Subscriber(url, engine).update()
    assert caught.value.code == "mismatch"
    assert bool((bits(engine.up.weight) == before).all())


def test_errors_are_errors(url: str) -> None:
    error = dw.Error("found this", "io")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code) == ("found this", "io")
    for group in (dw.RequestError, dw.UpdateError, dw.PeerError, dw.EngineError):
        assert issubclass(group, dw.Error)
    loop = Loop(url)
    loop.publisher.close()
    loop.publisher.close()
    for call in (
        loop.publisher.publish,
        loop.publisher.flush,
        loop.publisher.anchor,
        loop.publisher.state_dict,
    ):
        with pytest.raises(dw.Error, match="closed"):
            call()
    subscriber = dw.Subscriber(url, engine_of(loop.model))
    subscriber.close()
    with pytest.raises(dw.Error, match="closed"):
        subscriber.update()
    with pytest.raises(dw.Error, match="s3"):
        dw.Subscriber("s3://bucket/run", engine_of(loop.model))


def test_logging_goes_to_logging(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="deltawire"):
        loop = Loop(url)
        loop.model.up.weight.data.add_(1)
        loop.publish()
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "served FP32 parameters as BF16" in text
    assert "6 tensors watched by inversion" in text
    assert "not by an observed optimizer step" in text


def test_publisher_is_not_kept_alive(url: str) -> None:
    loop = Loop(url)
    loop.publish(wait=False)
    gone = weakref.ref(loop.publisher)
    del loop.publisher
    gc.collect()
    assert gone() is None
    assert not loop.optimizer._optimizer_step_pre_hooks
    train_step(loop.model, loop.optimizer)


def test_exit_without_close(url: str) -> None:
    program = (
        "import sys, torch, deltawire, logging\n"
        "logging.basicConfig(level=logging.DEBUG)\n"
        "m = torch.nn.Linear(64, 64)\n"
        "o = torch.optim.AdamW(m.parameters())\n"
        "p = deltawire.Publisher(m, o, sys.argv[1])\n"
        "s = deltawire.Subscriber(sys.argv[1], torch.nn.Linear(64, 64, dtype=torch.bfloat16))\n"
        "f = s.follow(poll_seconds=0.01)\n"
        "m(torch.randn(2, 64)).sum().backward(); o.step()\n"
        "p.publish(wait=False)\n"
    )
    subprocess.run([sys.executable, "-c", program, url], check=True, timeout=300, capture_output=True)
    assert Path(url, "manifests", "00000001.json").exists()


def test_import_does_no_work() -> None:
    program = "import sys, deltawire; print('torch' in sys.modules, deltawire.__version__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ")
