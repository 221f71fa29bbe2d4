"""One rollout engine: a process of its own with its own BF16 copy of the model.

Started by ``engine_process.py``. It samples whenever it has a request, and between two generations it swaps
to the next published version. Orders come as JSON lines on standard input, events leave as JSON lines on
standard output; the end of the input means that the trainer is gone, and ends the engine.

Orders: attach {url}; sample {prompts, samples, max_tokens, stop_token, seed}; published {version};
    finish {file}.
Events: loaded; attached and committed {version, digest, hashes, and times}; rollout {version, seed, tokens,
    log_probs, lengths, seconds}; finished {version, digest, file, peak_rss_bytes}.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, TextIO

import deltawire as dw
import torch
from memory import peak_rss_bytes
from oracle import tensor_hashes, write_weights
from policy import sample
from transformers import AutoModelForCausalLM

Message = dict[str, Any]


class Engine:
    """The engine's loop. One thread samples and swaps; a second one only reads the orders."""

    def __init__(self, base: Path, events: TextIO) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()
        self._events = events
        self._orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._requests: deque[Message] = deque()
        self._newest = 0
        self._final_file: Path | None = None
        self._subscriber: dw.Subscriber | None = None

    def run(self, orders: TextIO) -> None:
        """Serves until the final check is written or the trainer closes the channel."""
        threading.Thread(target=self._read, args=(orders,), daemon=True).start()
        self._send("loaded")
        while self._take_orders():
            if self._subscriber is not None and self._subscriber.version < self._newest:
                self._swap()
            elif self._final_file is not None:
                self._finish(self._final_file)
                return
            elif self._subscriber is not None and self._requests:
                self._generate(self._requests.popleft())

    def _read(self, orders: TextIO) -> None:
        for line in orders:
            self._orders.put(json.loads(line))
        self._orders.put(None)

    def _take_orders(self) -> bool:
        """Takes all waiting orders; waits for one if there is nothing to do. False: the trainer is gone."""
        behind = self._subscriber is not None and self._subscriber.version < self._newest
        idle = not (behind or self._requests or self._final_file)
        while idle or not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            self._obey(order)
            idle = False
        return True

    def _obey(self, order: Message) -> None:
        match order["order"]:
            case "attach":
                self._subscriber = dw.Subscriber(order["url"], self._model)
                self._report_version("attached")
            case "sample":
                self._requests.append(order)
            case "published":
                self._newest = order["version"]
            case "finish":
                self._final_file = Path(order["file"])
            case unknown:
                raise ValueError(f"the engine got the order {unknown!r}, which it does not know")

    def _swap(self) -> None:
        """Moves to the next version: one at a time, so that the bits of every version can be compared."""
        assert self._subscriber is not None
        target = self._subscriber.version + 1
        start = time.perf_counter()
        self._subscriber.stage(target)
        staged = time.perf_counter()
        self._subscriber.commit()
        done = time.perf_counter()
        self._report_version("committed", apply_seconds=done - start, pause_seconds=done - staged)

    def _report_version(self, event: str, **timings: float) -> None:
        assert self._subscriber is not None
        self._send(
            event,
            version=self._subscriber.version,
            digest=str(self._subscriber.digest),
            hashes=tensor_hashes(self._model, threads=1),
            **timings,
        )

    def _generate(self, request: Message) -> None:
        assert self._subscriber is not None
        start = time.perf_counter()
        prompts = torch.tensor(request["prompts"]).repeat_interleave(request["samples"], dim=0)
        generator = torch.Generator().manual_seed(request["seed"])
        done = sample(self._model, prompts, request["max_tokens"], request["stop_token"], generator)
        self._send(
            "rollout",
            version=self._subscriber.version,
            seed=request["seed"],
            tokens=done.tokens.tolist(),
            log_probs=done.log_probs.tolist(),
            lengths=done.lengths.tolist(),
            seconds=time.perf_counter() - start,
        )

    def _finish(self, file: Path) -> None:
        assert self._subscriber is not None
        self._subscriber.verify()
        write_weights(self._model, file)
        self._send(
            "finished",
            version=self._subscriber.version,
            digest=str(self._subscriber.digest),
            file=str(file),
            peak_rss_bytes=peak_rss_bytes(),
        )

    def _send(self, event: str, **fields: Any) -> None:
        self._events.write(json.dumps({"event": event, **fields}) + "\n")
        self._events.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="the BF16 checkpoint folder to load")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # Whatever a library prints must not end up between the events: it goes to the engine's log instead.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        Engine(arguments.base, events).run(sys.stdin)
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    # The reading thread may still be blocked on standard input; nothing is left to clean up.
    code = main()
    sys.stderr.flush()
    os._exit(code)
