"""Every change of every step arrives, whatever happens around the step (rows DET of docs/failures.md)."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any

import deltawire as dw
import pytest
import torch
from oracle import assert_exact, bits, engine_of
from small_models import Bag, Mlp, random_step, train_step

VARIANTS: dict[str, dict[str, Any]] = {
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("every", [1, 2, 4, 7])
def test_DET_01_any_publish_interval(url: str, variant: str, every: int) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, **VARIANTS[variant])
    engine = engine_of(model)
    with dw.Publisher(model, optimizer, url) as publisher, dw.Subscriber(url, engine) as subscriber:
        subscriber.update()
        assert {method for method, _ in publisher.detectors.values()} == {"inversion", "fence"}
        for published in range(3):
            extra = int(published == 1)  # one more step slipped in just before a publish
            for _ in range(every + extra):
                train_step(model, optimizer)
            version = publisher.publish()
            assert version.steps == every + extra
            assert version.notes == ()
            assert 0 < version.sent <= version.total
            assert subscriber.update().digest == version.digest
            assert_exact(model, engine)


def test_DET_01_interval_changes_at_will(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for steps in (1, 5, 0, 2, 0, 3):
        for _ in range(steps):
            train_step(model, optimizer)
        version = publisher.publish()
        assert version.steps == steps
        subscriber.update()
        assert_exact(model, engine)


@pytest.mark.parametrize("detector", ["auto", "snapshot"])
def test_DET_02_equal_low_bytes_still_differ(url: str, detector: str) -> None:
    before = torch.tensor([0x3F80, 0x3F80, 0x0000, 0x0001], dtype=torch.int32).to(torch.int16)
    after = torch.tensor([0xBF80, 0x4080, 0x8000, 0x8001], dtype=torch.int32).to(torch.int16)
    model = Bag({"w": before.view(torch.bfloat16).to(torch.float32)})
    engine = engine_of(model)
    optimizer = torch.optim.AdamW(model.parameters())
    publisher = dw.Publisher(model, optimizer, url, detector=detector)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    model.w.data.copy_(after.view(torch.bfloat16))
    publisher.publish()
    subscriber.update()
    assert bits(engine.w).tolist() == after.tolist()


def test_DET_03_schedule_advances_before_publish(url: str) -> None:
    model = Mlp(width=256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    steps = 60
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min(1.0, t / 5) * max(0.0, (steps - t) / steps)
    )
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(steps):
        train_step(model, optimizer)
        schedule.step()
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)
    assert schedule.get_last_lr() == [0.0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_DET_04_weights_around_midpoints(url: str, variant: str) -> None:
    # Every kind of neighbourhood: midpoints and powers of two, 0 to 4 ulp of float32 aside, both signs.
    generator = torch.Generator().manual_seed(4)
    n = 1 << 16
    cells = torch.randint(0x3000, 0x41FF, (n,), generator=generator, dtype=torch.int32)
    cells[::8] &= ~0x7F
    pattern = (cells << 16) + 0x8000 * torch.randint(0, 2, (n,), generator=generator, dtype=torch.int32)
    pattern += torch.randint(-4, 5, (n,), generator=generator, dtype=torch.int32)
    sign = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0)
    model = Bag({"w": pattern.view(torch.float32) * sign})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, betas=(0.9, 0.95), **VARIANTS[variant])
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(8):
        random_step(model, optimizer)
        version = publisher.publish()
        assert version.notes == ()
        subscriber.update()
        assert_exact(model, engine)


def test_DET_05_buffers_travel(url: str) -> None:
    model = Mlp()
    model.register_buffer("e_score_correction_bias", torch.zeros(7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(3):
        train_step(model, optimizer)
        model.seen += 1
        model.e_score_correction_bias += torch.randn(7) * 1e-6  # below BF16's resolution
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)


def test_DET_06_skipped_steps(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for step in range(6):
        if step == 2:
            optimizer.zero_grad(set_to_none=True)
            optimizer.step()  # called, and nothing happens
        elif step != 3:  # loss-scale overflow: not called at all
            train_step(model, optimizer)
        version = publisher.publish()
        assert (version.sent == 0) == (step in (2, 3))
        subscriber.update()
        assert_exact(model, engine)


def test_DET_07_groups_with_their_own_settings(url: str) -> None:
    names = ["small", "still", "frozen", "wild"]
    model = Bag({name: torch.randn(64, 33) for name in names})
    model.frozen.requires_grad_(False)
    settings = {"small": (1e-6, 0.1), "still": (0.0, 0.1), "frozen": (1e-3, 0.1), "wild": (0.5, 2.0)}
    optimizer = torch.optim.AdamW(
        [
            {"params": [getattr(model, name)], "lr": lr, "weight_decay": wd}
            for name, (lr, wd) in settings.items()
            if name != "frozen"
        ]
    )
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    assert publisher.detectors["frozen"] == ("fence", "frozen")
    for _ in range(3):
        random_step(model, optimizer)
        version = publisher.publish()
        # 1 - 0.5 * 2 has no inverse: that tensor goes whole, and says so; no other does.
        assert [note.split()[1] for note in version.notes] == ["wild:"]
        assert version.sent < 2 * 64 * 33
        subscriber.update()
        assert_exact(model, engine)


def test_DET_08_edits_outside_the_step(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(3):
        train_step(model, optimizer)
        model.up.load_state_dict({"weight": torch.randn(48, 32), "bias": torch.randn(48)})
        model.down.weight.data[3, 5] += 1
        version = publisher.publish()
        assert any("up.weight" in note for note in version.notes)
        assert any("down.weight" in note for note in version.notes)
        subscriber.update()
        assert_exact(model, engine)
        # And an edit before the step, which the step then builds on.
        model.norm.weight.data.mul_(1.5)
        train_step(model, optimizer)
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)


def test_DET_08_ema_swap(url: str) -> None:
    model = Mlp()
    average = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(3):
        train_step(model, optimizer)
        trained = copy.deepcopy(model.state_dict())
        for name, tensor in trained.items():
            if tensor.is_floating_point():
                average[name].lerp_(tensor, 0.1)
        model.load_state_dict(average)
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)
        model.load_state_dict(trained)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


@pytest.mark.parametrize("registered", ["before", "after"])
def test_DET_08_other_hooks_edit_weights(url: str, registered: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def clip(*_: Any) -> None:
        with torch.no_grad():
            model.up.weight.clamp_(-0.05, 0.05)

    def register() -> None:
        optimizer.register_step_pre_hook(clip)
        optimizer.register_step_post_hook(clip)

    if registered == "before":
        register()
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    if registered == "after":
        register()
        publisher.publish()
    for _ in range(3):
        train_step(model, optimizer)
        publisher.publish()
        subscriber.update()
        assert subscriber.metrics()["deltawire/refusals_total"] == 0
        assert_exact(model, engine)


def test_DET_08_closure_edits_weights(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)

    def closure() -> torch.Tensor:
        with torch.no_grad():
            model.up.weight += 0.01
        optimizer.zero_grad()
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        return loss

    for call in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
        assert isinstance(call(), torch.Tensor)
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)


def test_DET_08_exception_inside_a_step(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    train_step(model, optimizer)
    module = sys.modules["torch.optim.adam"]
    whole = module.adam

    def half(params: Any, grads: Any, m: Any, v: Any, x: Any, steps: Any, **options: Any) -> None:
        whole(params[:2], grads[:2], m[:2], v[:2], x, steps[:2], **options)
        raise FloatingPointError("in the middle of a step")

    monkeypatch.setattr(module, "adam", half)
    with pytest.raises(FloatingPointError):
        train_step(model, optimizer)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)
    with pytest.raises(FloatingPointError):
        train_step(model, optimizer)
    monkeypatch.undo()
    train_step(model, optimizer)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


def test_DET_08_optimizer_state_reloaded(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    train_step(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        train_step(model, optimizer)
    optimizer.load_state_dict(saved)
    train_step(model, optimizer)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


def test_DET_08_hooks_removed(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    optimizer._optimizer_step_pre_hooks.clear()
    optimizer._optimizer_step_post_hooks.clear()
    train_step(model, optimizer)
    version = publisher.publish()
    assert any("step counter" in note for note in version.notes)
    subscriber.update()
    assert_exact(model, engine)


@pytest.mark.parametrize("detector", ["auto", "snapshot"])
def test_DET_10_signs_of_zero_and_nan_payloads(url: str, detector: str) -> None:
    start = torch.tensor([0.0, -0.0, math.nan, 1.0, math.inf], dtype=torch.float32)
    start.view(torch.int32)[2] = 0x7FC01234
    model = Bag({"w": start.clone(), "n": start.to(torch.bfloat16)}, {"b": start.clone()})
    model.n.data.view(torch.int16)[2] = 0x7FC1
    engine = engine_of(model)
    optimizer = torch.optim.AdamW([model.w, model.n])
    publisher = dw.Publisher(model, optimizer, url, detector=detector)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    assert_exact(model, engine)
    assert publisher.publish().sent == 0  # an untouched NaN is unchanged
    model.w.data.view(torch.int32)[0] = -0x80000000
    model.w.data.view(torch.int32)[1] = 0
    model.n.data.view(torch.int16)[2] = 0x7FC2
    model.b.view(torch.int32)[2] = 0x7FC04321
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


def test_DET_10_negative_zero_through_a_step(url: str) -> None:
    model = Bag({"w": torch.tensor([-0.0, 0.0, 1e-40, -1e-39, 3e-38] * 40)})
    engine = engine_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for gradient in (0.0, -0.0, 1e-30, 0.0):
        model.w.grad = torch.full_like(model.w, gradient)
        optimizer.step()
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)


@pytest.mark.parametrize("variant", VARIANTS)
def test_DET_11_parameters_without_gradients(url: str, variant: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **VARIANTS[variant])
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    skipped = ("up.weight", "norm.bias")
    for step in range(6):
        before = bits(model.up.weight.data.to(torch.bfloat16)).clone()
        random_step(model, optimizer, skip=skipped if step % 2 else ())
        if step % 2:
            assert bool((bits(model.up.weight.data.to(torch.bfloat16)) == before).all())
        version = publisher.publish()
        assert version.notes == ()
        subscriber.update()
        assert_exact(model, engine)


def test_DET_11_freeze_and_unfreeze(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for step in range(4):
        for parameter in model.parameters():
            parameter.requires_grad_(step % 2 == 0)
        random_step(model, optimizer)
        version = publisher.publish()
        assert (version.sent == 0) == (step % 2 == 1)
        subscriber.update()
        assert_exact(model, engine)


def test_gradient_accumulation_and_clipping(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(4):
            model(torch.randn(4, 32)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        optimizer.step()
        assert publisher.publish().notes == ()
        subscriber.update()
        assert_exact(model, engine)


def test_two_optimizers(url: str) -> None:
    model = Mlp()
    first = torch.optim.AdamW([*model.up.parameters(), *model.norm.parameters()], lr=1e-4)
    second = torch.optim.RMSprop(model.down.parameters(), lr=1e-3)
    engine = engine_of(model)
    publisher = dw.Publisher(model, [first, second], url)
    subscriber = dw.Subscriber(url, engine)
    method, reason = publisher.detectors["down.weight"]
    assert method == "capture" and "no inverse is known of torch.optim.rmsprop.RMSprop" in reason
    for _ in range(3):
        model(torch.randn(4, 32)).square().mean().backward()
        first.step()
        second.step()
        assert publisher.publish().steps == 2
        subscriber.update()
        assert_exact(model, engine)


def test_parameter_joins_a_group_later(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW([*model.up.parameters()], lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    assert publisher.detectors["down.weight"] == ("fence", "no optimizer steps it")
    optimizer.add_param_group({"params": list(model.down.parameters()), "lr": 1e-3})
    for _ in range(2):
        train_step(model, optimizer)
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)


def test_subclass_of_adamw_is_not_adamw(url: str) -> None:
    class Mine(torch.optim.AdamW):
        pass

    model = Mlp()
    optimizer = Mine(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    assert publisher.detectors["up.weight"][0] == "snapshot"
    train_step(model, optimizer)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


def test_flags_set_after_opening_hold_for_the_next_step(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    train_step(model, optimizer)
    publisher.publish()
    group = optimizer.param_groups[0]
    for state in optimizer.state.values():
        state["max_exp_avg_sq"] = state["exp_avg_sq"].clone()
    for flag, value in (("amsgrad", True), ("decoupled_weight_decay", False), ("maximize", True)):
        group[flag] = value
        train_step(model, optimizer)
        assert publisher.publish().notes == ()
        subscriber.update()
        assert_exact(model, engine)
    group["eps"] = 0.0
    train_step(model, optimizer)
    assert all("eps=0" in note for note in publisher.publish().notes)
    subscriber.update()
    assert_exact(model, engine)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_hyperparameter_makes_that_step_dense(url: str, value: float) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    optimizer.param_groups[0]["lr"] = value
    train_step(model, optimizer)
    version = publisher.publish()
    assert any("not finite" in note for note in version.notes)
    subscriber.update()
    assert_exact(model, engine)


def test_tensor_learning_rate(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4), foreach=False)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(3):
        train_step(model, optimizer)
        assert publisher.publish().notes == ()
        subscriber.update()
        assert_exact(model, engine)


def test_inversion_where_it_cannot_be_is_an_error(url: str) -> None:
    model = Mlp().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(dw.Error, match=r"tensor up\.weight can't use inversion.*BF16 as BF16") as caught:
        dw.Publisher(model, optimizer, url, detector="inversion")
    assert caught.value.code == "unsupported"
    with pytest.raises(dw.Error, match="'auto', 'copy_back', 'inversion', 'capture', 'snapshot'"):
        dw.Publisher(model, optimizer, url, detector="guess")


def test_publisher_without_optimizer(url: str) -> None:
    model = Mlp()
    engine = engine_of(model)
    publisher = dw.Publisher(model, None, url)
    subscriber = dw.Subscriber(url, engine)
    with torch.no_grad():
        model.up.weight[0, 0] += 1
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


def test_parameters_given_to_an_optimizer_later_are_named(url: str) -> None:
    model = Mlp()
    names = dict(model.named_parameters())
    last = list(names)[-1]
    optimizer = torch.optim.AdamW([p for name, p in names.items() if name != last], lr=1e-3)
    publisher = dw.Publisher(model, optimizer, url)
    engine = engine_of(model)
    subscriber = dw.Subscriber(url, engine)
    train_step(model, optimizer)
    assert not publisher.publish().notes
    optimizer.add_param_group({"params": [names[last]], "lr": 1e-2})
    train_step(model, optimizer)
    notes = publisher.publish().notes
    assert any(last in note and "open a new publisher" in note for note in notes)
    subscriber.update()
    assert_exact(model, engine)


def test_one_family_may_be_given_by_itself(url: str) -> None:
    class Own(torch.optim.AdamW):
        pass

    model = Mlp()
    optimizer = Own(model.parameters(), lr=1e-3)
    with dw.Publisher(model, optimizer, url, adam_family=dw.AdamFamily(Own)) as publisher:
        assert {method for method, _ in publisher.detectors.values()} == {"inversion", "fence"}
    with pytest.raises(dw.Error, match=r"not a deltawire\.AdamFamily"):
        dw.explain(model, optimizer, adam_family=[Own])
