"""All engines of a run, seen from the trainer: requests out, rollouts and evidence in, a kill, a return."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from arithmetic import Problem
from engine_process import EngineProcess, Event
from policy import Completions

_REQUESTS_AHEAD = 2
"""Unanswered requests an engine holds: it seldom waits for the trainer, and no sample is far behind."""
_SILENCE_SECONDS = 120.0
"""How long the trainer waits for any event before it gives up."""


class EngineFailure(Exception):
    """An engine ended, or stayed silent, when it should not have."""


@dataclass(frozen=True)
class Request:
    """What an engine is asked to sample: ``samples`` completions for each problem."""

    seed: int
    problems: list[Problem]
    prompts: list[list[int]]
    """Token ids, the same number for each problem."""
    samples: int
    max_tokens: int
    stop_token: int


@dataclass(frozen=True)
class Rollout:
    """The answer to a request, and the version of the weights that gave it."""

    request: Request
    completions: Completions
    version: int
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """What an engine held when it had just attached or committed."""

    engine: int
    life: int
    version: int
    digest: str
    hashes: dict[str, str]
    apply_seconds: float | None
    """Stage and commit; None for an attach."""
    pause_seconds: float | None
    """The commit alone, while nothing can be sampled; None for an attach."""


@dataclass(frozen=True)
class Farewell:
    """An engine's last report: its weights, written to a file after its own full check."""

    engine: int
    version: int
    digest: str
    file: Path
    peak_rss_bytes: int


class Fleet:
    """Starts, feeds and ends the engines. A context manager: on the way out no process is left.

    Not for several threads: events are handled inside the calls of the trainer's thread.
    """

    def __init__(self, count: int, base: Path, work_folder: Path, draw: Callable[[], Request]) -> None:
        self.evidence: list[Evidence] = []
        self._events: queue.Queue[Event] = queue.Queue()
        self._engines = [EngineProcess(number, base, work_folder, self._events) for number in range(count)]
        self._pending: list[dict[int, Request]] = [{} for _ in range(count)]
        self._rollouts: deque[Rollout] = deque()
        self._farewells: dict[int, Farewell] = {}
        self._work_folder = work_folder
        self._draw = draw
        self._url: str | None = None
        self._newest = 0
        self._loaded: set[int] = set()
        self._killed: set[tuple[int, int]] = set()
        self._sampling = True

    def __enter__(self) -> Fleet:
        for engine in self._engines:
            engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._engines:
            engine.stop()

    def attach(self, url: str) -> None:
        """Lets every engine follow the store, as soon as it has loaded its model."""
        self._url = url
        for number in sorted(self._loaded):
            self._attach(number)

    def collect(self, count: int) -> list[Rollout]:
        """Waits for ``count`` rollouts, from whichever engines are first."""
        self._wait(lambda: len(self._rollouts) >= count, "for samples")
        return [self._rollouts.popleft() for _ in range(count)]

    def announce(self, version: int) -> None:
        """Tells the engines that a version is in the store. They swap after the generation they are in.

        An engine that is still loading learns it when it attaches.
        """
        self._newest = version
        for number in self._loaded:
            self._engines[number].send("published", version=version)

    def kill(self, number: int) -> None:
        """SIGKILLs an engine, wherever it is."""
        self._killed.add((number, self._engines[number].life))
        self._engines[number].kill()
        self._pending[number].clear()
        self._loaded.discard(number)

    def restart(self, number: int) -> None:
        """Starts a killed engine anew: from the base on disk and the store, with no memory of its past."""
        self._engines[number].start()

    def finish(self) -> list[Farewell]:
        """Lets all engines reach the newest version, check themselves and write their weights.

        Returns their reports in engine order.
        """
        self._sampling = False
        self._wait(lambda: len(self._loaded) == len(self._engines), "for a restarted engine to load")
        for engine in self._engines:
            engine.send("finish", file=str(self._work_folder / f"engine-{engine.number}.safetensors"))
        self._wait(lambda: len(self._farewells) == len(self._engines), "for the engines' last reports")
        return [self._farewells[engine.number] for engine in self._engines]

    def _wait(self, done: Callable[[], bool], purpose: str) -> None:
        deadline = time.monotonic() + _SILENCE_SECONDS
        while not done():
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise EngineFailure(
                    f"no engine said anything for {_SILENCE_SECONDS:.0f} s while waiting {purpose}"
                ) from None
            self._handle(event)
            deadline = time.monotonic() + _SILENCE_SECONDS

    def _handle(self, event: Event) -> None:
        # What a killed engine had sent before is evidence like any other, but its requests are void.
        current = (event.engine, event.life) not in self._killed
        match event.name:
            case "attached" | "committed":
                self._keep_evidence(event)
                if event.name == "attached" and current:
                    self._feed(event.engine)
            case "rollout" if current:
                self._keep_rollout(event)
            case "loaded" if current:
                self._loaded.add(event.engine)
                if self._url is not None:
                    self._attach(event.engine)
            case "finished":
                self._farewells[event.engine] = Farewell(
                    engine=event.engine,
                    version=event.fields["version"],
                    digest=event.fields["digest"],
                    file=Path(event.fields["file"]),
                    peak_rss_bytes=event.fields["peak_rss_bytes"],
                )
            case "exited" if current and event.engine not in self._farewells:
                raise self._failure(event)

    def _failure(self, event: Event) -> EngineFailure:
        words = self._engines[event.engine].last_words()
        return EngineFailure(
            f"engine {event.engine} ended with code {event.fields['code']}; its log ends with:\n{words}"
        )

    def _keep_evidence(self, event: Event) -> None:
        fields = event.fields
        self.evidence.append(
            Evidence(
                engine=event.engine,
                life=event.life,
                version=fields["version"],
                digest=fields["digest"],
                hashes=fields["hashes"],
                apply_seconds=fields.get("apply_seconds"),
                pause_seconds=fields.get("pause_seconds"),
            )
        )

    def _keep_rollout(self, event: Event) -> None:
        fields = event.fields
        self._rollouts.append(
            Rollout(
                request=self._pending[event.engine].pop(fields["seed"]),
                completions=Completions(
                    torch.tensor(fields["tokens"]),
                    torch.tensor(fields["log_probs"]),
                    torch.tensor(fields["lengths"]),
                ),
                version=fields["version"],
                seconds=fields["seconds"],
            )
        )
        self._feed(event.engine)

    def _attach(self, number: int) -> None:
        self._engines[number].send("attach", url=self._url)
        self._engines[number].send("published", version=self._newest)

    def _feed(self, number: int) -> None:
        while self._sampling and len(self._pending[number]) < _REQUESTS_AHEAD:
            request = self._draw()
            self._pending[number][request.seed] = request
            self._engines[number].send(
                "sample",
                prompts=request.prompts,
                samples=request.samples,
                max_tokens=request.max_tokens,
                stop_token=request.stop_token,
                seed=request.seed,
            )
