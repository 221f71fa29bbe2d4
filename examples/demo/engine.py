"""One rollout engine: a process of its own with its own BF16 copy of the model.

Started by ``engine_process.py``. It samples whenever it has a request, and between two generations it swaps
to the next published version. Orders come as JSON lines on standard input, events leave as JSON lines on
standard output; the end of the input means that the trainer is gone, and ends the engine.

Orders: first attach {url}; then sample {prompts, samples, max_tokens, stop_token, seed}, published {version},
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
import traceback
from collections import deque
from pathlib import Path
from typing import Any, TextIO

import deltawire as dw
import torch
from memory import peak_rss_bytes
from policy import sample
from tensor_hashes import tensor_hashes, write_weights
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

Order = dict[str, Any]


class Channel:
    """Orders in, events out. A thread reads, so that a look for orders between generations takes no time."""

    def __init__(self, orders: TextIO, events: TextIO) -> None:
        self._events = events
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(orders,), daemon=True).start()

    @property
    def has_order(self) -> bool:
        return not self._orders.empty()

    def next_order(self) -> Order:
        """The next order, waiting for it. Raises EOFError when the trainer is gone."""
        order = self._orders.get()
        if order is None:
            raise EOFError
        return order

    def send(self, event: str, **fields: Any) -> None:
        """Sends one event."""
        self._events.write(json.dumps({"event": event, **fields}) + "\n")
        self._events.flush()

    def _read(self, orders: TextIO) -> None:
        for line in orders:
            self._orders.put(json.loads(line))
        self._orders.put(None)


class Engine:
    """Samples and swaps in turn, in one thread: a swap finds no generation under way."""

    def __init__(self, model: PreTrainedModel, subscriber: dw.Subscriber, channel: Channel) -> None:
        self._model = model
        self._subscriber = subscriber
        self._channel = channel
        self._requests: deque[Order] = deque()
        self._live = self._newest = 0
        self._final_file: Path | None = None

    def run(self) -> None:
        """Serves until the last report is written."""
        # The model was loaded from the base that version 0 refers to; this proves it.
        self._report_version("attached", self._subscriber.update(0))
        while True:
            self._take_orders()
            if self._live < self._newest:
                self._swap()
            elif self._final_file is not None:
                self._finish(self._final_file)
                return
            else:
                self._generate(self._requests.popleft())

    @property
    def _idle(self) -> bool:
        return not self._requests and self._live == self._newest and self._final_file is None

    def _take_orders(self) -> None:
        """Takes all waiting orders, and waits for one if there is nothing to do."""
        while self._channel.has_order or self._idle:
            self._obey(self._channel.next_order())

    def _obey(self, order: Order) -> None:
        match order["order"]:
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
        start = time.perf_counter()
        self._subscriber.stage(self._live + 1)
        staged = time.perf_counter()
        version = self._subscriber.commit()
        done = time.perf_counter()
        self._report_version("committed", version, apply_seconds=done - start, pause_seconds=done - staged)

    def _report_version(self, event: str, version: dw.Version, **timings: float) -> None:
        self._live = version.number
        hashes = tensor_hashes(self._model, threads=1)
        self._channel.send(
            event, version=version.number, digest=self._subscriber.digest, hashes=hashes, **timings
        )

    def _generate(self, request: Order) -> None:
        start = time.perf_counter()
        prompts = torch.tensor(request["prompts"]).repeat_interleave(request["samples"], dim=0)
        generator = torch.Generator().manual_seed(request["seed"])
        done = sample(self._model, prompts, request["max_tokens"], request["stop_token"], generator)
        self._channel.send(
            "rollout",
            version=self._live,
            seed=request["seed"],
            tokens=done.tokens.tolist(),
            log_probs=done.log_probs.tolist(),
            lengths=done.lengths.tolist(),
            seconds=time.perf_counter() - start,
        )

    def _finish(self, file: Path) -> None:
        self._subscriber.verify()
        write_weights(self._model, file)
        self._channel.send(
            "finished",
            version=self._live,
            digest=self._subscriber.digest,
            file=str(file),
            peak_rss_bytes=peak_rss_bytes(),
        )


def _serve(base: Path, channel: Channel) -> None:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()
    # The loader may have mapped the file, and then the first commits would wait for the kernel to copy pages.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    channel.send("loaded")
    order = channel.next_order()
    if order["order"] != "attach":
        raise ValueError(f"the engine's first order is {order['order']!r}, expected 'attach'")
    with dw.Subscriber(order["url"], model) as subscriber:
        Engine(model, subscriber, channel).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="the BF16 checkpoint folder to load")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers_logging.disable_progress_bar()
    # Whatever a library prints must not end up between the events: it goes to the engine's log instead.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        _serve(arguments.base, Channel(sys.stdin, events))
    except (EOFError, BrokenPipeError):
        print("the trainer is gone; so is this engine", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # The reading thread may still be blocked on standard input, which a normal exit would wait for.
    code = 1
    try:
        code = main()
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)
