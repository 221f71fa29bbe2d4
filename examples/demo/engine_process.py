"""The trainer's end of an engine: starts it, talks to it, kills it, and never leaves it behind."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ENGINE_SCRIPT = Path(__file__).with_name("engine.py")
_STOP_SECONDS = 5.0
_LOG_LINES = 15


@dataclass(frozen=True)
class Event:
    """One message of an engine. ``life`` tells a restarted engine's messages from those of the killed one."""

    engine: int
    life: int
    name: str
    fields: dict[str, Any]


class EngineProcess:
    """One engine, through all its lives. Its events go to the queue given.

    The last event of each life is ``exited``.
    """

    def __init__(self, number: int, base: Path, work_folder: Path, events: queue.Queue[Event]) -> None:
        self.number = number
        self.life = 0
        self._base = base
        self._log = work_folder / f"engine-{number}.log"
        self._events = events
        self._process: subprocess.Popen[str] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process.

        It gets a session of its own, so that a Ctrl-C on the terminal reaches only the trainer.
        """
        self.life += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_ENGINE_SCRIPT), "--base", str(self._base)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(self._process, self.life), daemon=True).start()

    def send(self, order: str, **fields: Any) -> None:
        """Sends one order. A dead engine is not an error here: its ``exited`` event tells."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"order": order, **fields}) + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: the engine gets no chance to finish anything. Returns when it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends the engine whatever it is doing. Safe to call at any time, more than once."""
        if self._process is None:
            return
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def last_words(self) -> str:
        """The end of what the engine wrote to its log, for an error message."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def _read(self, process: subprocess.Popen[str], life: int) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if not line.endswith("\n"):
                    break  # the kill cut this message off
                fields = json.loads(line)
                self._events.put(Event(self.number, life, fields.pop("event"), fields))
        self._events.put(Event(self.number, life, "exited", {"code": process.wait()}))
