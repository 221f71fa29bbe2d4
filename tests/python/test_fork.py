"""A process that is forked while a publisher is at work: the child ends, and the parent goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, time
import torch
import deltawire as dw

url, then = sys.argv[1:]
torch.manual_seed(1)
model = torch.nn.Linear(2048, 2048)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
publisher = dw.Publisher(model, optimizer, url)
detector = dw.ChangeDetector(model, optimizer)
engine = torch.nn.Linear(2048, 2048).to(torch.bfloat16)
subscriber = dw.Subscriber(url, engine)
subscriber.update()
follower = subscriber.follow(poll_seconds=0.05)

def step():
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()

step()
with torch.no_grad():
    model.weight.mul_(1.5)  # the whole tensor: an upload of megabytes, still under way at the fork
publisher.publish(wait=False)
child = os.fork()
if child == 0:
    for call in (publisher.publish, publisher.flush, subscriber.update, detector.collect):
        try:
            call()
        except dw.Error as e:
            assert "belongs to the process that was forked" in str(e), e
        else:
            os._exit(3)
    if then == "step":
        torch.set_num_threads(1)  # torch's own do not survive a fork either
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()  # its copy of the optimizer, whose hooks know that they are elsewhere
    if then == "close":
        publisher.close()
        subscriber.close()
        detector.close()
    sys.exit(7)  # through the interpreter's exit
deadline = time.monotonic() + 20
while True:
    done, status = os.waitpid(child, os.WNOHANG)
    if done or time.monotonic() > deadline:
        break
    time.sleep(0.01)
if not done:
    os.kill(child, 9)
    raise SystemExit("the child hangs")
assert os.waitstatus_to_exitcode(status) == 7, status
publisher.flush()
step()
version = publisher.publish()
follower.stop()
subscriber.update()
assert subscriber.version.number == version.number == 2
assert torch.equal(engine.weight, model.weight.to(torch.bfloat16))
print("gone on")
"""


@pytest.mark.parametrize("then", ["exit", "step", "close"])
def test_a_forked_child_ends(url: str, tmp_path: Path, then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, then], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "gone on\n"), done.stderr
