"""What a trainer process sees of its training: where the tensors are, and each step of their optimizers.

Shared by everything that publishes or detects.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import torch

from ._calls import Calls
from ._detector import Choice
from ._errors import Error, make
from ._frameworks import Piece, Reading, Stepping
from ._model import ModelTensor, check_overlap, live_names
from ._newcomers import Newcomers
from ._observer import Inversion, OptimizerHooks, StepTuple, counters
from ._split import Split, SplitHandle
from ._step_wrapper import is_wrapper
from ._tensors import Placement, Views, placement

if TYPE_CHECKING:
    from . import _core
    from ._step_audit import StepAudit

_LOG = logging.getLogger("deltawire")


class Core(Protocol):
    """What _core.Publisher and _core.Detector share."""

    def before_step(self, tensors: Sequence[int]) -> None: ...
    def after_step(self, steps: Sequence[StepTuple]) -> None: ...
    def check_steps(self, counters: Sequence[int]) -> None: ...
    def begin_capture(self, tensors: Sequence[int]) -> None: ...
    def end_capture(self, tensors: Sequence[int]) -> None: ...
    def copy_back(self, tensor: int, master: _core.Tensor) -> None: ...
    def rebind(self, tensor: int, live: _core.Tensor) -> None: ...
    def demotions(self) -> list[tuple[int, str, str]]: ...


CoreTensor = tuple[str, Sequence[str], "_core.Tensor", str, str, str, int]


def core_tensors(
    tensors: Sequence[ModelTensor], served: Sequence[str], choices: Sequence[Choice], views: Views
) -> list[CoreTensor]:
    """What the core is told of each tensor when it is opened."""
    return [
        (
            entry.name,
            entry.aliases,
            views.of(entry.name, entry.tensor),
            served_dtype,
            choice.method,
            choice.reason,
            step,
        )
        for entry, served_dtype, choice, step in zip(tensors, served, choices, counters(choices), strict=True)
    ]


class Watch:
    """Tells the core of every step of the optimizers, and refuses what has moved to where it can't follow.

    Attached from the start; ``close()`` detaches it. Neither the optimizers nor the frameworks keep it alive.
    Threads: calls take the lock of ``calls``. While an optimizer steps in one thread, ``check_model`` refuses
    the others.
    """

    def __init__(
        self,
        owner: str,
        core: Core,
        calls: Calls,
        views: Views,
        model: torch.nn.Module,
        reading: Reading,
        tensors: Sequence[ModelTensor],
        choices: list[Choice],
        stepping: Stepping,
        entries: Sequence[ModelTensor] | None = None,
        audit: StepAudit | None = None,
    ) -> None:
        """``owner``: what the user holds, for messages. ``tensors``: the model's. ``entries``: the core's, in
        its order, to which ``choices`` belong; by default the same. One that is not among the model's stands
        for what is computed from them at a publish. In ``choices``, shared with the owner, demotions are
        entered.
        """
        self._owner = owner
        self._core = core
        self._calls = calls
        self._model = model
        self._reading = reading
        self._tensors = tensors
        self._entries = tensors if entries is None else entries
        self._choices = choices
        self._torch_ops = views.torch_ops
        self._audit = audit
        self._index = {id(entry): i for i, entry in enumerate(self._entries)}
        self._names = {name: placement(live[1]) for name, live in live_names(model, reading).items()}
        self._places = [placement(entry.tensor) for entry in self._entries]
        self._inversion = Inversion(choices)
        self._copied = {
            id(entry.held): i
            for i, (entry, choice) in enumerate(zip(self._entries, choices, strict=True))
            if choice.method == "copy_back"
        }
        self._stepped: dict[int, list[int]] = {}  # id(optimizer) -> what it may write
        self._stepping: dict[int, _Stepping] = {}  # by id of the optimizer
        self._in_pieces = {id(optimizer) for optimizer in stepping.in_pieces}
        self._newcomers = Newcomers(stepping.optimizers, self._entries, choices)
        self._hooks: list[OptimizerHooks] = []
        self._splits: list[SplitHandle] = []
        self._unsplit: list[set[int]] = []  # by split: what a step updated, but did not let capture
        self._begun: set[int] = set()  # captures of the present step
        self._ends: list[Callable[[], None]] = []
        for optimizer in stepping.optimizers:
            self._attach(optimizer)
        if self._copied:
            self._attach_sources(stepping)

    def _attach(self, optimizer: torch.optim.Optimizer) -> None:
        parts: dict[int, list[int]] = {}
        for i, choice in enumerate(self._choices):
            for owner, parameter in choice.captured:
                if owner is optimizer:
                    parts.setdefault(id(parameter), []).append(i)
        inverted = self._inversion.tensors_of(optimizer)
        self._stepped[id(optimizer)] = inverted + [i for part in parts.values() for i in part]
        hooks = OptimizerHooks(optimizer)
        hooks.attach(self)
        self._hooks.append(hooks)
        self._ends.append(hooks.detach)
        if parts:
            split = Split.attach(optimizer, self, parts)
            self._splits.append(split)
            self._unsplit.append(set())
            self._ends.append(split.remove)

    def _attach_sources(self, stepping: Stepping) -> None:
        ref = weakref.ref(self)

        def before_copy(pieces: Sequence[Piece]) -> None:
            if (watch := ref()) is not None:
                watch.before_copy(pieces)

        def after_step() -> None:
            if (watch := ref()) is not None:
                watch.after_step_in_pieces()

        self._ends += [
            hook.remove for source in stepping.sources for hook in source.attach(before_copy, after_step)
        ]

    def close(self) -> None:
        """May be repeated."""
        for end in self._ends:
            end()

    def counters(self) -> list[int]:
        """Of each entry, the step counter that inversion goes by; 0 where it does not."""
        return self._inversion.counters()

    def check_model(self) -> None:
        """Before served bits are read: follows tensors that have moved.

        Raises what can't be followed, naming the tensor, before anything is changed.
        """
        self._check_idle()
        self._follow_model()

    def before_collection(self) -> None:
        """The same, and tells the core of steps that went by unseen."""
        self.check_model()
        self._inversion.forget()
        self._core.check_steps(self.counters())

    def after_collection(self) -> None:
        """Enters the detectors that the collection, whatever became of it, has found to be wrong."""
        for i, method, reason in self._core.demotions():
            if self._choices[i].method != method:
                self._choices[i] = dataclasses.replace(self._choices[i], method=method, reason=reason)
                self._inversion.drop(i)
                _LOG.warning("tensor %s is watched by %s: %s", self._entries[i].name, method, reason)

    def notes(self) -> tuple[str, ...]:
        """What is out of the ordinary about the optimizers now, for the version that is published."""
        out = []
        if later := self._newcomers.invisible():
            out.append(
                f"{self._some(later)} were given to an optimizer after the {self._owner} was opened "
                f"({next(iter(later.values()))}): steps of what it holds now are noticed, and their changed "
                f"blocks go out whole; open a new {self._owner} (resume=True) to have them watched"
            )
        for hooks in self._hooks:
            if hooks.stranger and self._stepped[id(hooks.optimizer)]:
                out.append(
                    f"the step() of the {type(hooks.optimizer).__name__} has been replaced by "
                    f"{hooks.stranger}, whose arithmetic is not known: what it changes goes out whole; open "
                    f"the {self._owner} after that, and other detectors are chosen"
                )
        for split, unsplit in zip(self._splits, self._unsplit, strict=True):
            if unsplit or split.bypassed:
                out.append(
                    f"{self._some(unsplit or split.indices)} are watched by capture, but "
                    f"{split.why_not()}: their changed blocks go out whole; open the {self._owner} after "
                    "that, and other detectors are chosen"
                )
            unsplit.clear()
        return tuple(out)

    def _some(self, indices: Collection[int]) -> str:
        names = [self._entries[i].name for i in sorted(indices)]
        return f"{len(names)} tensors ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"

    def keep_order(self) -> None:
        for hooks in self._hooks:
            hooks.keep_order()

    # Called by the optimizers' hooks and steps

    def before_step(self, optimizer: torch.optim.Optimizer, between: str) -> None:
        with self._calls.lock:
            if self._calls.closed:
                return
            self._stepping[id(optimizer)] = _Stepping(optimizer)
            self._follow(self._stepped[id(optimizer)])
            self._core.before_step(self._inversion.tensors_of(optimizer))
            self._inversion.before_step(optimizer, between, self._newcomers.touched())
            if self._audit is not None:
                self._audit.before_step(self.counters())

    def after_step(self, optimizer: torch.optim.Optimizer, between: str) -> None:
        with self._calls.lock:
            self._stepping.pop(id(optimizer), None)
            if self._calls.closed:
                return
            for split, unsplit in zip(self._splits, self._unsplit, strict=True):
                if split.optimizer is optimizer:
                    unsplit |= split.stepped() - self._begun
                    self._begun -= split.indices
            steps = self._inversion.after_step(optimizer, between)
            # State may be replaced at any step, and its address used again.
            views = Views(torch_ops=self._torch_ops)
            if steps or id(optimizer) not in self._in_pieces:
                self._core.after_step([step.for_core(views) for step in steps])
            if self._audit is not None:
                self._audit.after_step(optimizer, steps)
            self.keep_order()

    def after_step_in_pieces(self) -> None:
        """What several steps of an optimizer have made up was one step."""
        with self._calls.lock:
            if not self._calls.closed:
                self._core.after_step([])

    def begin_capture(self, indices: list[int]) -> None:
        with self._calls.lock:
            if not self._calls.closed:
                self._begun.update(indices)
                self._core.begin_capture(indices)

    def end_capture(self, indices: list[int]) -> None:
        with self._calls.lock:
            if not self._calls.closed:
                self._core.end_capture(indices)

    def before_copy(self, pieces: Sequence[Piece]) -> None:
        """These were stepped elsewhere and are about to be cast into the model."""
        with self._calls.lock:
            if self._calls.closed:
                return
            copied = [
                (i, piece) for piece in pieces if (i := self._copied.get(id(piece.parameter))) is not None
            ]
            self._follow(i for i, _ in copied)
            views = Views(torch_ops=self._torch_ops)
            self._core.before_step([i for i, _ in copied])
            for i, piece in copied:
                assert piece.master is not None
                entry = self._entries[i]
                master = piece.master().view(entry.tensor.shape)
                if master.device != entry.tensor.device:
                    # Offloaded optimizers: what is cast there is what the framework brings here.
                    master = master.to(entry.tensor.dtype).to(entry.tensor.device)
                self._core.copy_back(i, views.of(entry.name, master))

    def _check_idle(self) -> None:
        for key, stepping in list(self._stepping.items()):
            if stepping.thread == threading.get_ident():
                continue
            if stepping.goes_on():
                raise make(
                    "invalid_argument",
                    f"an optimizer ({stepping.kind}) is inside step() in another thread and its weights are "
                    "moving; call this between steps",
                )
            del self._stepping[key]  # an exception has ended that step

    # Places

    def _follow(self, indices: Iterable[int]) -> None:
        for i in indices:
            entry = self._entries[i]
            if placement(self._reading.read(entry.name, entry.held)[0]) != self._places[i]:
                # By names more is known: whether ties still hold, and which object the model has now.
                self._follow_model()
                return

    def _follow_model(self) -> None:
        live = live_names(self._model, self._reading)
        names = {name: placement(tensor) for name, (_, tensor, _) in live.items()}
        if names == self._names:
            return
        self._check_names(names)
        followed = []
        for entry in self._tensors:
            held, tensor, part = live[entry.name]
            known, now = self._names[entry.name], names[entry.name]
            apart = next((name for name in entry.aliases if names[name] != now), None)
            if apart is not None:
                raise make(
                    "mismatch",
                    f"tensors {entry.name} and {apart} were one when the {self._owner} was opened, and are "
                    f"two now (p.data = ... or an assignment has untied them); close this {self._owner} and "
                    "start a new run",
                )
            i = self._index.get(id(entry))
            if now != known:
                if (known[2], *known[4:]) != (now[2], *now[4:]) or part != entry.part:
                    raise self._moved(entry.name, known, now)
                if held is not entry.held and (i is None or self._choices[i].method != "fence"):
                    raise make(
                        "mismatch",
                        f"tensor {entry.name} is another object than when the {self._owner} was opened, and "
                        "the optimizer still steps the old one. Write into the old one in place; or build a "
                        f"new optimizer, close this {self._owner} and open a new one",
                    )
            followed.append((i, dataclasses.replace(entry, tensor=tensor, held=held)))
        check_overlap([entry for _, entry in followed])
        # Not those from the start: what was freed since may have left its address to something else.
        views = Views(torch_ops=self._torch_ops)
        for (i, now_entry), entry in zip(followed, self._tensors, strict=True):
            if i is not None and placement(now_entry.tensor) != self._places[i]:
                self._core.rebind(i, views.of(entry.name, now_entry.tensor))
                self._places[i] = placement(now_entry.tensor)
            entry.tensor, entry.held = now_entry.tensor, now_entry.held
        self._names = names

    def _check_names(self, now: dict[str, Placement]) -> None:
        missing = sorted(self._names.keys() - now.keys())
        extra = sorted(now.keys() - self._names.keys())
        if missing or extra:
            raise make(
                "mismatch",
                "the model's tensors are not those of the run: "
                + "; ".join(
                    f"{what} {', '.join(names)}"
                    for what, names in (("missing", missing), ("new", extra))
                    if names
                )
                + f"; a run has one set of names: close this {self._owner} and start a new run",
            )

    def _moved(self, name: str, known: Placement, now: Placement) -> Error:
        labels = ("storage", "offset", "shape", "strides", "dtype", "device")
        change = next(
            f"its {labels[k]} was {known[k]} and is {now[k]}"
            for k in (2, 4, 5, 3, 1, 0)  # first what could not be followed
            if known[k] != now[k]
        )
        return make(
            "mismatch",
            f"tensor {name} is not what it was when the {self._owner} was opened: {change} (model.to(), "
            f"p.data = ..., resize). Put it back, or close this {self._owner} and open a new one",
        )


class _Stepping:
    """A step that has begun and not ended; perhaps by an exception, of which nobody is told."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.thread = threading.get_ident()
        self.kind = type(optimizer).__name__
        self._optimizer = weakref.ref(optimizer)

    def goes_on(self) -> bool:
        """Whether that thread is still inside of it."""
        frame: FrameType | None = sys._current_frames().get(self.thread)
        while frame is not None:
            if is_wrapper(frame.f_code) and (
                frame.f_locals.get("self", self._optimizer()) is self._optimizer()
            ):
                return True
            frame = frame.f_back
        return False
