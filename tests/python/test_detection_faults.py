"""Bad input and faults around steps: noticed and handled or refused by name, never missed, nothing lost."""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import deltawire as dw
import pytest
import torch
from detection_loop import Loop
from small_models import Bag, Mlp, Tied, random_step, train_step

AdamW, SGD = torch.optim.AdamW, torch.optim.SGD
# An optimizer for each detector that watches steps, and one that can't be watched.
WATCHED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "inversion": lambda params: AdamW(params, lr=1e-4),
    "inversion-sgd": lambda params: SGD(params, lr=1e-3, momentum=0.9),
    "capture": lambda params: torch.optim.RMSprop(params, lr=1e-4),
    "snapshot": lambda params: type("Own", (AdamW,), {})(params, lr=1e-4),
}
every_detector = pytest.mark.parametrize("name", WATCHED)


def watched(name: str, model: torch.nn.Module, url: str) -> tuple[torch.optim.Optimizer, Loop]:
    optimizer = WATCHED[name](model.parameters())
    loop = Loop(model, optimizer, url)
    assert set(loop.methods().values()) <= {name.split("-")[0], "fence"}
    return optimizer, loop


@every_detector
def test_publish_before_the_first_step(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    for _ in range(2):
        version = loop.publish()
        assert (version.sent, version.steps) == (0, 0)
    train_step(model, optimizer)
    assert loop.publish().changed > 0


@every_detector
def test_a_model_that_is_opened_in_the_middle_of_training(url: str, name: str) -> None:
    model = Mlp()
    optimizer = WATCHED[name](model.parameters())
    for _ in range(3):
        train_step(model, optimizer)
    loop = Loop(model, optimizer, url)
    train_step(model, optimizer)
    assert loop.publish().dense == 0


def test_counters_that_differ_by_parameter_and_go_back(url: str) -> None:
    model = Mlp()
    optimizer, loop = watched("inversion", model, url)
    for skip in (("up.weight",), ("up.weight",), ()):
        random_step(model, optimizer, skip=skip)
        loop.publish()
    counters = {int(state["step"]) for state in optimizer.state.values()}
    assert counters == {1, 3}
    optimizer.state[model.down.weight]["step"].fill_(0)
    random_step(model, optimizer)
    version = loop.publish(quiet=False)
    assert version.notes == (
        "tensor down.weight: block [0:8, 0:48] sent dense: its step counter went from 3 to 1",
    )
    # And nothing else: what the bits say counts.
    optimizer.state[model.up.bias]["step"].fill_(100)
    assert loop.publish().sent == 0
    for _ in range(2):
        random_step(model, optimizer)
        loop.publish()


def test_state_missing_for_some_parameters(url: str) -> None:
    model = Mlp()
    optimizer, loop = watched("inversion", model, url)
    random_step(model, optimizer)
    loop.publish()
    # The whole state of one: the optimizer starts it again, at 1.
    del optimizer.state[model.up.weight]
    random_step(model, optimizer)
    assert all("up.weight" in note for note in loop.publish(quiet=False).notes)
    # State that goes after the step, before anybody could use it.
    random_step(model, optimizer)
    optimizer.state.clear()
    assert all("step counter is 0" in note for note in loop.publish(quiet=False).notes)
    random_step(model, optimizer)
    loop.publish(quiet=False)
    random_step(model, optimizer)
    loop.publish()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@every_detector
def test_non_finite_weights_moments_and_gradients(url: str, name: str, value: float) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    train_step(model, optimizer)
    loop.publish()
    with torch.no_grad():
        model.up.weight[3, 3] = value
        for what, p in (("exp_avg", model.down.weight), ("exp_avg_sq", model.norm.weight)):
            state = optimizer.state[p]
            state.get(what, state.get("momentum_buffer", state.get("square_avg", p))).view(-1)[5] = value
    random_step(model, optimizer)
    loop.publish(quiet=False)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
        p.grad.view(-1)[1] = value
    optimizer.step()
    loop.publish(quiet=False)
    for _ in range(2):
        random_step(model, optimizer)
        loop.publish(quiet=False)


def test_moments_replaced_by_bf16_ones(url: str) -> None:
    """torch then computes the update itself in BF16, which the proof does not cover."""
    model = Mlp()
    optimizer = AdamW(model.parameters(), lr=1e-4, foreach=False)
    loop = Loop(model, optimizer, url)
    train_step(model, optimizer)
    loop.publish()
    kept = {p: state["exp_avg_sq"] for p, state in optimizer.state.items()}
    for state in optimizer.state.values():
        state["exp_avg_sq"] = state["exp_avg_sq"].bfloat16()
    for _ in range(2):
        train_step(model, optimizer)
        notes = loop.publish(quiet=False).notes
        assert len(notes) >= 5 and all("exp_avg_sq is BF16, not F32" in note for note in notes)
    for p, moment in kept.items():
        optimizer.state[p]["exp_avg_sq"] = moment
    train_step(model, optimizer)
    loop.publish()
    # Opened on such a state, capture is chosen.
    optimizer.state[model.up.weight]["exp_avg_sq"] = kept[model.up.weight].bfloat16()
    second = Loop(model, optimizer, url + "2")
    method, reason = second.publisher.detectors["up.weight"]
    assert method == "capture" and "exp_avg_sq is BF16, not F32" in reason
    train_step(model, optimizer)
    second.publish()


@every_detector
def test_optimizer_state_reloaded_from_a_checkpoint(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    train_step(model, optimizer)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for _ in range(2):
        train_step(model, optimizer)
        loop.publish()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    loop.publish(quiet=False)
    for _ in range(2):
        train_step(model, optimizer)
        loop.publish(quiet=False)
    assert loop.publisher.publish().sent == 0


@every_detector
def test_ema_swap_by_data(url: str, name: str) -> None:
    """Weights exchanged by assigning .data, published, and put back."""
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    average = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        for _ in range(2):
            train_step(model, optimizer)
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.lerp_(p.detach(), 0.5)
        trained = [p.data for p in model.parameters()]
        for mean, p in zip(average, model.parameters(), strict=True):
            p.data = mean
        loop.publish(quiet=False)
        for old, p in zip(trained, model.parameters(), strict=True):
            p.data = old
    train_step(model, optimizer)
    loop.publish(quiet=False)
    train_step(model, optimizer)
    loop.publish()


@every_detector
def test_data_exchanged_right_before_a_step(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    train_step(model, optimizer)
    loop.publish()
    for layout in (torch.contiguous_format, "transposed"):
        data = torch.randn(48, 32) * 0.1
        model.up.weight.data = data.T.contiguous().T if layout == "transposed" else data
        train_step(model, optimizer)
        loop.publish(quiet=False)
        train_step(model, optimizer)
        version = loop.publish()
        assert version.dense == 0


@every_detector
@pytest.mark.parametrize("how", ["shape", "dtype", "object"])
def test_a_parameter_resized_or_replaced_is_refused_by_name(url: str, name: str, how: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    for _ in range(2):
        train_step(model, optimizer)
    kept, data = model.up.weight, model.up.weight.data
    if how == "shape":
        kept.data = torch.randn(48, 33)
        expected = r"tensor up\.weight .*its shape was \(48, 32\) and is \(48, 33\)"
    elif how == "dtype":
        kept.data = data.double()
        expected = r"tensor up\.weight .*its dtype was torch.float32 and is torch.float64"
    else:
        model.up.weight = torch.nn.Parameter(torch.randn(48, 32))
        expected = r"tensor up\.weight is another object .*the optimizer still steps the old one"
    for call in (
        loop.publisher.publish,
        loop.publisher.state_dict,
        loop.publisher.anchor,
        loop.publisher.audit,
    ):
        with pytest.raises(dw.Error, match=expected) as caught:
            call()
        assert caught.value.code == "mismatch"
    if how == "shape" and name != "snapshot":
        # A step says so, too, before it is made.
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        before = model.down.weight.detach().clone()
        with pytest.raises(dw.Error, match=expected):
            optimizer.step()
        assert bool((model.down.weight == before).all())
    # Put back, what the steps changed is still there to send.
    if how == "object":
        model.up.weight = kept
    else:
        kept.data = data
    version = loop.publish()
    assert version.changed > 0 and version.steps == 2


def test_a_buffer_may_be_assigned_anew(url: str) -> None:
    model = Bag({"w": torch.randn(4)}, {"seen": torch.zeros(3), "mean": torch.zeros(5)})
    optimizer, loop = watched("inversion", model, url)
    for _ in range(3):
        model.seen = model.seen + 1
        random_step(model, optimizer)
        loop.publish()
    model.seen = torch.zeros(4)
    with pytest.raises(dw.Error, match=r"tensor seen .*its shape was \(3,\) and is \(4,\)"):
        loop.publisher.publish()
    model.seen = model.mean[:3]
    with pytest.raises(dw.Error, match="overlap in memory"):
        loop.publisher.publish()
    model.seen = torch.ones(3)
    loop.publish()


def test_tied_tensors_that_part_are_refused(url: str) -> None:
    model = Tied()
    optimizer, loop = watched("inversion", model, url)
    optimizer.step()
    tied = model.head.weight
    model.head.weight = torch.nn.Parameter(tied.detach().clone())
    with pytest.raises(dw.Error, match=r"tensors embed\.weight and head\.weight were one"):
        loop.publisher.publish()
    model.head.weight = tied
    loop.publish()
    # Both at once is no parting.
    tied.data = tied.data.clone()
    random_step(model, optimizer)
    loop.publish()


@every_detector
def test_edits_that_bump_no_version(url: str, name: str) -> None:
    """A numpy view, a merged adapter, load_state_dict, .data in place: before a step and after one."""
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    a, b = torch.randn(48, 4) * 0.1, torch.randn(4, 32) * 0.1

    def edit(turn: int) -> None:
        model.down.weight.detach().numpy()[turn, turn] += 1
        model.up.weight.data += a @ b
        model.norm.load_state_dict({"weight": torch.randn(48), "bias": torch.randn(48)})

    for turn in range(2):
        edit(turn)
        train_step(model, optimizer)
        loop.publish(quiet=False)
        model.up.weight.data -= a @ b
        train_step(model, optimizer)
        edit(turn)
        loop.publish(quiet=False)
    train_step(model, optimizer)
    loop.publish()


@every_detector
def test_hooks_removed_by_the_user(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    train_step(model, optimizer)
    loop.publish()
    optimizer._optimizer_step_pre_hooks.clear()
    optimizer._optimizer_step_post_hooks.clear()
    for _ in range(2):
        train_step(model, optimizer)
        loop.publish(quiet=False)


def compiled_steps(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loop: Loop, backend: str
) -> None:
    compiled = torch.compile(optimizer.step, backend=backend)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.randn_like(p) * 1e-3
        compiled()
        assert loop.publish(quiet=False).sent > 0
    random_step(model, optimizer)
    loop.publish(quiet=False)


@every_detector
def test_a_compiled_step(url: str, name: str) -> None:
    model = Bag({"a": torch.randn(30, 20) * 0.02, "b": torch.randn(50) * 0.02})
    compiled_steps(model, *watched(name, model, url), backend="eager")


@pytest.mark.parametrize(
    "name",
    [name if name == "inversion" else pytest.param(name, marks=pytest.mark.soak) for name in WATCHED],
)
def test_a_step_compiled_to_machine_code(url: str, name: str) -> None:
    """Other kernels than torch's, with other orders of operations."""
    model = Bag({"w": torch.randn(300, 200) * 0.02})
    compiled_steps(model, *watched(name, model, url), backend="inductor")


@every_detector
def test_an_exception_inside_a_step(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    train_step(model, optimizer)
    loop.publish()
    for turn in range(2):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        # An update in the middle raises: parameters before it have moved.
        state = optimizer.state[model.norm.bias]
        key = next(key for key in state if key != "step")
        right, state[key] = state[key], torch.zeros(2)
        with pytest.raises(RuntimeError):
            optimizer.step()
        state[key] = right
        if turn == 0:
            loop.publish(quiet=False)
        train_step(model, optimizer)
        loop.publish(quiet=False)
    train_step(model, optimizer)
    loop.publish()


class _Elsewhere:
    """Runs a call in another thread and gives what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._call = call
        thread = threading.Thread(target=self._run)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as e:
            self.error = e


@every_detector
def test_publish_from_another_thread_while_a_step_runs(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    found: list[BaseException | None] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        found.append(_Elsewhere(loop.publisher.publish).error)
        found.append(_Elsewhere(loop.publisher.state_dict).error)
        assert _Elsewhere(loop.publisher.flush).error is None
        return loss

    optimizer.step(closure)
    assert len(found) == 2
    for error in found:
        assert isinstance(error, dw.Error) and "inside step() in another thread" in str(error)
    assert loop.publisher.version.number == 0
    assert loop.publish().changed > 0
    # Between steps any thread may, and a thread that trains may publish inside its own closure.
    train_step(model, optimizer)
    assert _Elsewhere(loop.publisher.publish).error is None
    loop.check()
    optimizer.step(lambda: loop.publisher.publish() and torch.zeros(()))
    loop.publish(quiet=False)


@every_detector
def test_a_step_that_raised_refuses_nobody_afterwards(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)

    def closure() -> torch.Tensor:
        raise FloatingPointError("in the middle of a step")

    with pytest.raises(FloatingPointError):
        optimizer.step(closure)
    assert _Elsewhere(loop.publisher.publish).error is None
    loop.check()
    train_step(model, optimizer)
    loop.publish()


SCALED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda params: AdamW(params, lr=1e-3),
    "adamw-fused": lambda params: AdamW(params, lr=1e-3, fused=True),
    "sgd-momentum": lambda params: SGD(params, lr=1e-2, momentum=0.9),
    "sgd-momentum-fused": lambda params: SGD(params, lr=1e-2, momentum=0.9, fused=True),
    "sgd-plain": lambda params: SGD(params, lr=1e-2),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3),
}


@pytest.mark.parametrize("name", SCALED)
def test_DET_06_grad_scaler_skips_a_step(url: str, name: str) -> None:
    """torch's own GradScaler. Fused optimizers are called and do nothing; others are not called."""
    model = Mlp()
    optimizer = SCALED[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loop = Loop(model, optimizer, url)
    for step in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        scaler.scale(loss).backward()
        if step in (2, 3):
            model.down.bias.grad[0] = math.inf  # type: ignore[index]
        if step == 4:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        version = loop.publish()
        assert (version.sent == 0) == (step in (2, 3))


def test_a_fused_step_whose_gradients_were_scaled_is_not_inverted_from_them(url: str) -> None:
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loop = Loop(model, optimizer, url)
    scaler.scale(model(torch.randn(16, 32)).square().mean()).backward()
    scaler.step(optimizer)
    assert all("loss scale" in note for note in loop.publish(quiet=False).notes)


def test_an_unclear_found_inf_goes_dense(url: str) -> None:
    """Two devices that overflowed add up to 2, which fused kernels take for a step to be made."""
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=True)
    loop = Loop(model, optimizer, url)
    random_step(model, optimizer)
    loop.publish()
    optimizer.found_inf = torch.tensor(2.0)  # type: ignore[attr-defined]
    random_step(model, optimizer)
    del optimizer.found_inf  # type: ignore[attr-defined]
    assert all("found_inf is 2.0" in note for note in loop.publish(quiet=False).notes)
    random_step(model, optimizer)
    loop.publish()


def test_optimizers_that_step_at_different_rates(url: str) -> None:
    model = Mlp()
    optimizers = [
        AdamW(model.up.parameters(), lr=1e-4),
        SGD(model.norm.parameters(), lr=1e-3, momentum=0.9),
        torch.optim.NAdam(model.down.parameters(), lr=1e-4),
    ]
    loop = Loop(model, optimizers, url)
    steps = 0
    for tick in range(1, 25):
        for period, optimizer in zip((1, 3, 4), optimizers, strict=True):
            if tick % period == 0:
                random_step(model, optimizer)
                steps += 1
        if tick % 5 == 0 or tick == 13:
            assert loop.publish().steps == steps
            steps = 0


@every_detector
def test_gradient_accumulation_and_clipping_at_any_interval(url: str, name: str) -> None:
    model = Mlp()
    optimizer, loop = watched(name, model, url)
    for every in (1, 2, 4, 1):
        for _ in range(every):
            optimizer.zero_grad()
            for _ in range(3):
                (model(torch.randn(8, 32)).square().mean() / 3).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
            optimizer.step()
        version = loop.publish()
        assert version.steps == every and version.changed > 0


def test_an_optimizer_of_other_parameters_is_refused(url: str) -> None:
    """The classic: built before the parameters were replaced."""
    model = Mlp()
    optimizer = AdamW(model.parameters())
    for module in (model.up, model.norm, model.down):
        for key, p in list(module.named_parameters(recurse=False)):
            setattr(module, key, torch.nn.Parameter(p.detach().clone()))
    with pytest.raises(
        dw.Error, match=r"AdamW given steps 6 parameters, and none of them is the model's"
    ) as caught:
        dw.Publisher(model, optimizer, url)
    assert caught.value.code == "invalid_argument"
    # Nothing was begun.
    assert dw.Publisher(model, AdamW(model.parameters()), url).version.number == 0


def test_an_optimizer_with_some_other_parameters_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    model, critic = Mlp(), Mlp()
    optimizer = AdamW([*model.parameters(), *critic.parameters()], lr=1e-4)
    with caplog.at_level(logging.INFO, logger="deltawire"):
        loop = Loop(model, optimizer, url)
    assert "6 of 12 parameters of the AdamW are not the model's" in caplog.text
    critic(model(torch.randn(3, 32)).repeat(1, 4)).sum().backward()
    optimizer.step()
    loop.publish()


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_fused_steps_over_state_of_other_strides_are_not_undone(url: str, kind: str) -> None:
    """Fused kernels pair elements by their place in memory: a checkpoint of a contiguous model, loaded into a
    channels_last one, is paired with other elements than its indices say."""
    torch.manual_seed(3)

    def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
        if kind == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()

    first = torch.nn.Conv2d(4, 8, 3, bias=False)
    saved = optimizer_of(first)
    step(first, saved)
    model = torch.nn.Conv2d(4, 8, 3, bias=False).to(memory_format=torch.channels_last)
    optimizer = optimizer_of(model)
    optimizer.load_state_dict(saved.state_dict())
    detector = dw.ChangeDetector(model, optimizer)
    assert detector.detectors["weight"][0] == "capture"
    assert "strides" in detector.detectors["weight"][1]
    detector.close()
    # And where the state is exchanged later, too.
    model = torch.nn.Conv2d(4, 8, 3, bias=False).to(memory_format=torch.channels_last)
    optimizer = optimizer_of(model)
    step(model, optimizer)
    with dw.ChangeDetector(model, optimizer) as detector:
        assert detector.detectors["weight"][0] == "inversion"
        optimizer.load_state_dict(saved.state_dict())
        for _ in range(4):
            before = model.weight.detach().to(torch.bfloat16).flatten().view(torch.int16).clone()
            step(model, optimizer)
            after = model.weight.detach().to(torch.bfloat16).flatten().view(torch.int16)
            changed = set((before != after).nonzero().flatten().tolist())
            found = {each.name: each for each in detector.collect()}
            assert changed <= set(found["weight"].positions.tolist())
            detector.confirm()


@pytest.mark.parametrize("counter", [float("nan"), float("inf"), 2.0**65])
def test_counters_that_are_none_go_dense(url: str, counter: float) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop = Loop(model, optimizer, url)
    random_step(model, optimizer)
    loop.publish()
    for state in optimizer.state.values():
        state["step"].fill_(counter)
    random_step(model, optimizer)
    loop.publish(quiet=False)


def test_a_step_that_goes_on_refuses_whatever_other_optimizers_do(url: str) -> None:
    model = Mlp()
    first, *rest = model.parameters()
    inside, leave = threading.Event(), threading.Event()
    one = torch.optim.AdamW([first], lr=1e-3)
    other = torch.optim.AdamW(rest, lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    publisher = dw.Publisher(model, [one, other], url)

    def closure() -> float:
        inside.set()
        assert leave.wait(30)
        return 0.0

    thread = threading.Thread(target=one.step, args=(closure,))
    thread.start()
    assert inside.wait(30)
    other.step()
    with pytest.raises(dw.Error, match="inside step"):
        publisher.publish()
    leave.set()
    thread.join()
    publisher.publish()


def test_a_class_whose_step_was_replaced_is_not_inverted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(self: torch.optim.Optimizer, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=1e-3)

    monkeypatch.setattr(torch.optim.AdamW, "step", torch.optim.Optimizer.profile_hook_step(noisy))
    model = Mlp()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    loop = Loop(model, optimizer, url)
    assert set(loop.methods().values()) == {"snapshot", "fence"}
    for _ in range(3):
        random_step(model, optimizer)
        loop.publish()
