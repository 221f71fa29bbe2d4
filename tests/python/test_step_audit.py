"""`deltawire doctor --audit` and the Publisher's half of it, in one run of a user's own program."""

import json
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch, deltawire as dw
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
with dw.Publisher(model, optimizer, sys.argv[1]) as publisher:
    for _ in range(6):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.skipif(shutil.which("deltawire") is None, reason="the deltawire command is not on the PATH")
def test_doctor_audits_a_real_training_loop(tmp_path):
    command = ["deltawire", "doctor", "--audit", "4", "--json", "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run([*command, str(tmp_path / "run")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["steps"] == 4
    assert found["compared"] == 4 * (64 * 64 + 64)
    assert found["changed"] > 0
    assert found["missed"] == found["wrong_old"] == 0
