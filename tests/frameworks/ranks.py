"""Ranks of a training job: processes in a gloo group that run functions of the test modules."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

WAIT_SECONDS = 100  # for a loaded machine; a scenario takes seconds


class Ranks:
    """``count`` processes that stay; each runs what it is given, one function at a time.

    They meet over a file, so that no port is taken. After a failure the group is not usable any more.
    """

    def __init__(self, count: int) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        self._place = tempfile.mkdtemp(prefix="deltawire-ranks-")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, count, f"{self._place}/meeting"), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.failed = False

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returned on each rank. Its first failure, by rank, is raised with its trace."""
        assert not self.failed, "an earlier failure has left the ranks apart"
        for pipe in self._pipes:
            pipe.send((function, args))
        until = time.monotonic() + WAIT_SECONDS
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < len(self._pipes):
            waiting = {id(pipe): rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait([self._pipes[rank] for rank in waiting.values()], max(until - time.monotonic(), 0))
            if not ready:
                answers |= {rank: (False, f"rank {rank} did not answer") for rank in waiting.values()}
            for pipe in ready:
                rank = waiting[id(pipe)]
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    answers[rank] = (False, f"rank {rank} died: {self._processes[rank].exitcode}")
                if not answers[rank][0]:
                    # The others may wait for it in a collective.
                    until = min(until, time.monotonic() + 2)
        failures = [answers[rank][1] for rank in sorted(answers) if not answers[rank][0]]
        if failures:
            self.failed = True
            self.close()
            raise AssertionError("\n".join(failures))
        return [answers[rank][1] for rank in sorted(answers)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(WAIT_SECONDS)
        shutil.rmtree(self._place, ignore_errors=True)


def _serve(pipe: Connection, rank: int, count: int, meeting: str) -> None:
    torch.set_num_threads(1)
    # As a launcher sets it; the address is asked for and not used, the group is there.
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR="localhost",
        MASTER_PORT="1",
    )
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=WAIT_SECONDS),
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            torch.manual_seed(7)
            pipe.send((True, function(*args)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))
        sys.stderr.flush()
