"""Child processes for the tests: trainers and receivers that can be killed.

A server process imports torch once and forks each child from there, before any thread exists.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

WAIT_SECONDS = 120  # for a loaded machine; nothing here takes a second


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    here = str(Path(__file__).parent)
    python = str(Path(__file__).parents[1] / "python")
    # What the server imports comes from the environment; children get this process's sys.path as well.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    missing = [path for path in (here, python) if path not in paths]
    os.environ["PYTHONPATH"] = os.pathsep.join([*missing, *filter(None, paths)])
    # torch._dynamo: an optimizer's first step would import it in every child, for seconds.
    modules = ["children", "deltawire._publisher", "small_models", "oracle", "torch._dynamo", "processes"]
    context.set_forkserver_preload(modules)
    return context


class Child:
    """Runs ``function(pipe, *args)`` in a process of its own; messages go through the pipe."""

    def __init__(self, function: Callable[..., None], *args: Any) -> None:
        context = _context()
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(function, theirs, args), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self) -> Any:
        """The next message; EOFError when the child is gone."""
        if not self.pipe.poll(WAIT_SECONDS):
            raise TimeoutError(f"the child said nothing for {WAIT_SECONDS} s")
        message = self.pipe.recv()
        if isinstance(message, BaseException):
            raise message
        return message

    def kill(self) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(WAIT_SECONDS)

    def join(self) -> None:
        """Waits for the end; raises what the child raised."""
        while True:
            try:
                self.receive()
            except EOFError:
                break
        self._process.join(WAIT_SECONDS)
        assert self._process.exitcode == 0, self._process.exitcode

    def wait(self) -> None:
        """For its end, however it ends."""
        self._process.join(WAIT_SECONDS)
        assert self._process.exitcode is not None


def _run(function: Callable[..., None], pipe: Connection, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        function(pipe, *args)
    except BaseException as e:
        pipe.send(e)
        pipe.close()
        sys.stderr.flush()
        os._exit(1)
    pipe.close()


def kill_this_process_in(seconds: float) -> None:
    """From a thread: the caller goes on, and SIGKILL meets it wherever it is then."""

    def wait_and_kill() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_kill, daemon=True).start()


def bits_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Every bit of every tensor, by name."""
    return {
        name: tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors.items()
    }
