"""The trainer's side: what a training loop holds."""

from __future__ import annotations

import dataclasses
import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from ._calls import Calls
from ._detector import detectors_of, log_choices
from ._errors import Error, make
from ._model import ModelTensor
from ._opening import Opening
from ._quantize import QuantizedWeights
from ._rules import AdamFamily
from ._serving import DtypeRule
from ._tensors import Views
from ._types import AuditReport, Version, version_metrics
from ._watch import Watch, core_tensors

if TYPE_CHECKING:
    from ._step_audit import StepAudit

_LOG = logging.getLogger("deltawire")
_ANCHOR_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
)


class Publisher:
    """Publishes a model's serving weights, version by version, to a store that engines follow.

    ``model``: the torch module that is trained. ``optimizer``: its optimizer, a list of them, or None; their
    steps are observed, so that no copy of the old weights is needed where inversion or capture applies.
    ``url``: a folder.

    ``base``: a checkpoint (folder or file) that engines already have; version 0 is then a patch on it.
    Without it a full checkpoint is written. ``detector``: "auto", or which of "copy_back", "inversion",
    "capture" and "snapshot" must watch every tensor that an optimizer steps (an error where it can't);
    ``explain()`` says what each would use. ``adam_family``: optimizer classes of yours that may be inverted.
    ``dtype``: what engines are served; default BF16 for FP32 parameters, everything else as stored. A torch
    dtype or a name for all floating parameters, or a dict from whole-name patterns to dtypes (None: as
    stored; ``Fp8(...)``: quantised on the trainer); the first that matches decides. With ``base``, its dtypes
    are served, FP8 too. ``codings``: "class", "step", "absolute", "open"; one part for each. ``run``:
    identity of the run, random by default. ``resume``: go on with the run that is there; given what
    ``state_dict()`` returned, only if the weights are the ones of then. ``anchor_every``: a full checkpoint
    beside every Nth version. ``single_writer``: you vouch that nobody else writes (for stores that can't
    tell). ``threads``: 0 for one a core.

    Opening publishes version 0, or on resume the version that goes on. Threads: calls are serialised by a
    lock; while an observed optimizer steps in another thread they are refused; and nobody may write weights
    during a call.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        url: str | os.PathLike[str],
        *,
        base: str | os.PathLike[str] | None = None,
        detector: str = "auto",
        adam_family: AdamFamily | Sequence[AdamFamily] = (),
        dtype: DtypeRule | Mapping[str, DtypeRule] = None,
        codings: Sequence[str] | None = None,
        run: str | None = None,
        resume: bool | Mapping[str, Any] = False,
        anchor_every: int = 0,
        single_writer: bool = False,
        threads: int = 0,
        _backend: str = "auto",
    ) -> None:
        self._calls = Calls("publisher")
        base_path = os.fspath(base) if base is not None else None
        opening = Opening(
            model, optimizer, detector=detector, adam_family=adam_family, dtype=dtype, base=base_path
        )
        self._model, rule = opening.model, opening.rule
        torch_ops = _backend == "torch"
        self._quantized = QuantizedWeights(opening.tensors, rule.fp8, detector, torch_ops)
        self._choices = opening.choices + self._quantized.choices
        served = opening.served + self._quantized.served
        self._tensors = opening.plain + self._quantized.entries
        views = Views(torch_ops=torch_ops)

        self._core = _core.Publisher(
            os.fspath(url),
            core_tensors(self._tensors, served, self._choices, views),
            run=run or "",
            resume=bool(resume),
            continuity=_continuity(resume),
            single_writer=single_writer,
            cast_rule=rule.text,
            casts=self._quantized.casts,
            codings=list(codings) if codings is not None else ["step"],
            base=base_path,
            anchor_every=anchor_every,
            anchor_files=_anchor_files(base_path, self._model),
            threads=views.threads(threads, (entry.tensor for entry in self._tensors)),
        )
        self._run = self._core.run
        self._version = Version._of(self._core.opened)
        self._audit = _step_audit(self._tensors, self._choices)
        self._watch = Watch(
            "publisher",
            self._core,
            self._calls,
            views,
            self._model,
            opening.reading,
            opening.tensors,
            self._choices,
            opening.stepping,
            entries=self._tensors,
            audit=self._audit,
        )
        self._finalizer = weakref.finalize(self, _shut_down, self._core, self._watch)
        _LOG.info("run %s, version %d: served %s", self.run, self._version.number, rule.text)
        log_choices(self._choices)

    # Versions

    def publish(self, wait: bool = True) -> Version:
        """Publishes the present serving weights as the next version.

        With ``wait=False`` it returns as soon as everything is encoded and uploads in the background;
        ``flush()`` or the next call waits and raises its error. After an error nothing is lost: the next
        version carries it all.
        """
        with self._calls():
            self._watch.before_collection()
            quantize_seconds = self._quantized.refresh(self._core)
            try:
                version = Version._of(self._core.publish(wait), quantize_seconds)
            finally:
                self._watch.after_collection()
            self._version = dataclasses.replace(version, notes=(*version.notes, *self._watch.notes()))
            self._watch.keep_order()
            return self._version

    def flush(self) -> None:
        """Waits until everything published is durable; raises the error of a background upload."""
        with self._calls():
            self._core.flush()

    def anchor(self) -> None:
        """Writes the newest version's full checkpoint. The weights must still be that version's."""
        with self._calls():
            self._watch.check_model()
            self._quantized.refresh(self._core)
            self._core.write_anchor()

    def audit(self) -> AuditReport:
        """Rebuilds the newest version from the store and compares it with the live weights, bit by bit."""
        with self._calls():
            self._watch.check_model()
            self._quantized.refresh(self._core)
            return AuditReport._of(self._core.audit())

    # State

    @property
    def version(self) -> Version:
        """The newest version that this publisher made."""
        return self._version

    @property
    def digest(self) -> str:
        """State digest of the newest version."""
        return self._version.digest

    @property
    def run(self) -> str:
        """Identity of the run."""
        return self._run

    @property
    def detectors(self) -> dict[str, tuple[str, str]]:
        """For each tensor: its detector, and why.

        One that was found wrong at a publish, where its changes did not add up to the new bits, is replaced
        by "snapshot" for the rest of the run.
        """
        return detectors_of(self._tensors, self._choices)

    def state_dict(self) -> dict[str, Any]:
        """To save with the trainer's checkpoint and to give as ``resume=`` later. Reads all weights once."""
        with self._calls():
            self._watch.check_model()
            self._quantized.refresh(self._core)
            run, number, digest = self._core.state()
            return {"run": run, "number": number, "digest": digest}

    def metrics(self) -> dict[str, float]:
        """A flat dict for a metrics logger, always with the same keys: the newest version's and its own."""
        with self._calls.lock:
            out = version_metrics(self._version)
            out |= self._calls.metrics()
            held = 0 if self._calls.closed else self._core.memory_bytes + self._quantized.memory_bytes
            out["deltawire/memory_bytes"] = float(held)
            return out

    # Life cycle

    def close(self) -> None:
        """Waits for uploads, raises their error, and stops observing the optimizer. May be repeated."""
        with self._calls.lock:
            if self._calls.closed:
                return
            try:
                self._core.flush()
            finally:
                self._calls.closed = True
                self._finalizer()
                if self._audit is not None:
                    self._audit.finish()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error:
            # The exception that ends the block is the cause to report.
            if kind is None:
                raise
            _LOG.exception("closing the publisher failed")

    def __repr__(self) -> str:
        return f"<deltawire.Publisher run={self._run} version={self._version.number}>"


def _shut_down(core: _core.Publisher, watch: Watch) -> None:
    watch.close()
    core.close()


def _continuity(resume: bool | Mapping[str, Any]) -> tuple[str, int, str] | None:
    if isinstance(resume, bool):
        return None
    try:
        return str(resume["run"]), int(resume["number"]), str(resume["digest"])
    except (KeyError, TypeError, ValueError) as e:
        raise make(
            "invalid_argument",
            "resume= is True, False, or what Publisher.state_dict() returned (run, number, digest)",
        ) from e


def _anchor_files(base: str | None, model: torch.nn.Module) -> list[tuple[str, bytes]]:
    """What makes anchors loadable beside the tensors."""
    if base is not None and os.path.isdir(base):
        return [(name, path.read_bytes()) for name in _ANCHOR_FILES if (path := Path(base, name)).is_file()]
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):
        return [("config.json", config.to_json_string().encode())]
    return []


def _step_audit(tensors: list[ModelTensor], choices: list[Any]) -> StepAudit | None:
    """Set up by `deltawire doctor --audit STEPS -- COMMAND` through the environment."""
    steps = os.environ.get("DELTAWIRE_AUDIT_STEPS")
    if not steps:
        return None
    if not steps.isdecimal() or int(steps) == 0:
        raise make("invalid_argument", f"DELTAWIRE_AUDIT_STEPS is {steps!r}, not a number of steps")
    from ._step_audit import StepAudit

    return StepAudit(tensors, choices, int(steps), os.environ.get("DELTAWIRE_AUDIT_REPORT"))
