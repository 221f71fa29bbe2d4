"""Situations that once went wrong without a word, found by trying to break the package."""

from pathlib import Path

import deltawire as dw
import pytest
import torch
from oracle import assert_exact, engine_of
from small_models import random_step


def linear() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 4))


@pytest.mark.parametrize("how", ["data", "float", "untied"])
def test_an_engine_whose_tensors_moved_is_told_so(tmp_path: Path, how: str) -> None:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with dw.Publisher(model, optimizer, tmp_path / "run") as publisher:
        engine = engine_of(model)
        subscriber = dw.Subscriber(tmp_path / "run", engine)
        subscriber.update()
        if how == "data":
            engine[0].weight.data = engine[0].weight.data.clone()
        elif how == "float":
            engine.float()
        else:
            engine[1].bias = torch.nn.Parameter(engine[1].bias.detach().clone(), requires_grad=False)
        random_step(model, optimizer)
        publisher.publish()
        for call in (subscriber.update, subscriber.stage, subscriber.verify):
            with pytest.raises(dw.Error, match="not where they were"):
                call()


def test_audit_with_a_base_and_after_the_base_has_moved(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    base = tmp_path / "base"
    base.mkdir()
    save_file(
        {name: t.detach().to(torch.bfloat16) for name, t in model.state_dict().items()},
        base / "model.safetensors",
    )
    with dw.Publisher(model, optimizer, tmp_path / "run", base=base) as publisher:
        random_step(model, optimizer)
        publisher.publish()
        assert publisher.audit().different == 0
        dw.Subscriber(tmp_path / "run", base).update()
        with pytest.raises(dw.Error, match="no longer holds"):
            publisher.audit()


@pytest.mark.parametrize("what", ["lr", "weights"])
def test_a_hook_that_runs_after_ours_sends_its_step_dense(tmp_path: Path, what: str) -> None:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with dw.Publisher(model, optimizer, tmp_path / "run") as publisher:
        engine = engine_of(model)
        subscriber = dw.Subscriber(tmp_path / "run", engine)

        def meddle(*_: object) -> None:
            if what == "lr":
                optimizer.param_groups[0]["lr"] *= 3
            else:
                model[0].weight.data.mul_(1.01)

        optimizer.register_step_pre_hook(meddle)
        for _ in range(3):
            random_step(model, optimizer)
            publisher.publish()
            subscriber.update()
            assert_exact(model, engine)


def test_an_anchor_in_its_run_is_no_target_but_its_copy_is(tmp_path: Path) -> None:
    import shutil

    model = linear()
    with dw.Publisher(model, None, tmp_path / "run"):
        anchor = tmp_path / "run" / "anchors" / "00000000"
        with pytest.raises(dw.Error, match="anchor"):
            dw.Subscriber(tmp_path / "run", anchor)
        shutil.copytree(anchor, tmp_path / "engine")
        assert dw.Subscriber(tmp_path / "run", tmp_path / "engine").update().number == 0


def test_overlapping_engine_tensors_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(torch.randn(60))
    model.b = torch.nn.Parameter(torch.randn(60))
    engine = torch.nn.Module()
    memory = torch.zeros(100, dtype=torch.bfloat16)
    engine.a = torch.nn.Parameter(memory[:60], requires_grad=False)
    engine.b = torch.nn.Parameter(memory[40:], requires_grad=False)
    with dw.Publisher(model, None, tmp_path / "run"), pytest.raises(dw.Error, match="same memory"):
        dw.Subscriber(tmp_path / "run", engine).update()


def test_a_patch_is_never_written_over_its_inputs(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for name in ("a", "b"):
        save_file({"w": torch.randn(10)}, tmp_path / f"{name}.safetensors")
    kept = (tmp_path / "b.safetensors").read_bytes()
    with pytest.raises(dw.Error, match="written over"):
        dw.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == kept


@pytest.mark.parametrize("detector", ["auto", "capture", "snapshot"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_opened_inside_inference_mode(tmp_path: Path, backend: str, detector: str) -> None:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.inference_mode():
        publisher = dw.Publisher(model, optimizer, tmp_path / "run", detector=detector, _backend=backend)
    engine = engine_of(model)
    subscriber = dw.Subscriber(tmp_path / "run", engine)
    for _ in range(3):
        random_step(model, optimizer)
        version = publisher.publish()
        assert not version.notes
        subscriber.update()
        assert_exact(model, engine)
    publisher.close()
