"""The density bench: its tasks, its sampling, its counts, and a small slice of the whole."""

import csv
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "density"))

import density
from episodes import logits_of_actions, play, policy_loss
from starts import ByteText, solved_text, start_of
from summary import as_markdown, draw, rows_of
from versions import Publishers
from workloads import WORKLOADS, Addition, FileSum, Form, Parity, Shape

BENCH = Path(__file__).resolve().parents[2] / "examples" / "density"
SEED = 20


def small_start():
    return start_of(WORKLOADS["moe"], SEED, True, Path("unused"), Path("unused"), print)


# Tasks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Addition, FileSum, Form, Parity])
def test_solution_earns_everything_and_nonsense_little(kind):
    rng = random.Random(SEED)
    for _ in range(50):
        task = kind.random(rng)
        assert task.reward(task.solution) == pytest.approx(1.0)
        assert task.reward(["~}\n"] * len(task.solution)) <= 0.5


def test_tools_answer_from_files_and_calculator():
    task = FileSum({"a": 40, "b": 17}, "b", 5)
    assert task.prompt == "add b and 5\n"
    assert task.reply(["read b\n"]) == "17\n"
    assert task.reply(["read b\n", "calc 17 + 5\n"]) == "22\n"
    assert task.reply(["read z\n"]) == task.reply(["calc 1 - 1\n"]) == "error\n"
    assert task.reply(["answer 22\n"]) is None
    assert solved_text(task) == "add b and 5\nread b\n17\ncalc 17 + 5\n22\nanswer 22\n"
    assert task.reward(["read a\n", "calc 40 + 5\n", "answer 45\n"]) == pytest.approx(0.1)
    assert task.reward(["read b\n", "calc 17 + 5\n", "answer 23\n"]) == pytest.approx(0.5)
    assert task.reward(["answer 22\n"]) == pytest.approx(0.6)


def test_format_takes_any_right_json_and_grades_the_rest():
    task = Form("json", "red", 7)
    assert task.reward(['{"number":7, "color":"red"}\n']) == 1.0
    assert task.reward(['{"color": "red", "number": 8}\n']) == pytest.approx(0.6 * 27 / 30)
    assert task.reward(["red 7\n"]) == 0.0
    assert Form("csv", "red", 7).reward(["red,7"]) == pytest.approx(0.5)


# Sampling -------------------------------------------------------------------------------------------------


class Talk:
    """Ends after as many lines as it is told, and answers at length."""

    solution = ()

    def __init__(self, prompt, turns):
        self.prompt = prompt
        self._turns = turns

    def reply(self, lines):
        return "so? " * len(self.prompt) + "\n" if len(lines) < self._turns else None

    def reward(self, lines):
        return 0.0


@pytest.fixture(scope="module")
def played():
    """Episodes of unequal lengths, and the model that played them."""
    start = small_start()
    tasks = [Talk("abc", 1), Talk("d", 3), Talk("efghi", 2), Talk("jk", 3)]
    shape = Shape(tasks=4, samples=2, turns=3, turn_tokens=5)
    episodes = play(start.model, start.text, tasks, shape, torch.Generator().manual_seed(SEED))
    return start.model, tasks, episodes


def test_transcripts_are_what_was_said(played):
    _, tasks, episodes = played
    text = ByteText()
    for row, lines in enumerate(episodes.lines):
        task = tasks[row // 2]
        expected = task.prompt
        for turn, line in enumerate(lines, start=1):
            expected += line
            if turn < len(lines):
                expected += task.reply(lines[:turn])
        assert text.decode(episodes.tokens[row][episodes.used[row]].tolist()) == expected
        acted = text.decode(episodes.tokens[row][episodes.acted[row]].tolist())
        assert acted == "".join(lines)
    assert [len(lines) for lines in episodes.lines] == [1, 1, 3, 3, 2, 2, 3, 3]


def test_a_padded_row_is_computed_as_if_alone(played):
    model, _, episodes = played
    logits = logits_of_actions(model, episodes)
    sampled = episodes.log_probs[episodes.acted]
    chosen = torch.log_softmax(logits, -1).gather(1, episodes.tokens[episodes.acted][:, None])[:, 0]
    torch.testing.assert_close(chosen, sampled, rtol=0, atol=1e-4)
    done = 0
    for row in range(len(episodes.lines)):
        used = episodes.used[row]
        tokens, acted = episodes.tokens[row][used][None], episodes.acted[row][used]
        alone = model(input_ids=tokens).logits[0, :-1][acted[1:]]
        torch.testing.assert_close(logits[done : done + len(alone)], alone, rtol=0, atol=1e-4)
        done += len(alone)
    assert done == len(logits)


def test_part_leaves_out_only_what_its_rows_do_not_use(played):
    model, _, episodes = played
    part = episodes.part(slice(2, 4))
    assert part.used.any(0).all()
    assert part.tokens[part.used].tolist() == episodes.tokens[2:4][episodes.used[2:4]].tolist()
    first = int(episodes.acted[:2].sum())
    expected = logits_of_actions(model, episodes)[first : first + int(part.acted.sum())]
    torch.testing.assert_close(logits_of_actions(model, part), expected, rtol=0, atol=1e-4)


def test_policy_gradient_raises_the_chance_of_what_was_better(played):
    model, _, episodes = played
    advantages = torch.tensor([1.0, -1.0] * 4)
    model.zero_grad()
    policy_loss(model, episodes, advantages).backward()

    def gain():
        with torch.no_grad():
            return -policy_loss(model, episodes, advantages).item()

    before = gain()
    saved = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
        after = gain()
        for parameter, old in zip(model.parameters(), saved, strict=True):
            parameter.copy_(old)
    assert after > before


# Counting -------------------------------------------------------------------------------------------------


def test_counts_are_those_of_all_histories_kept(tmp_path):
    """Against a copy of every step's served bits, compared by torch."""
    torch.manual_seed(SEED)
    start = small_start()
    model, engine = start.model, start.engine
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    every = [1, 2, 3]
    publishers = Publishers(model, optimizer, every, tmp_path, None, 1)

    def bits():
        return torch.cat(
            [p.detach().to(torch.bfloat16).flatten().view(torch.int16) for p in model.parameters()]
        )

    history = [bits()]
    for step in range(1, 7):
        sign = 1 if step % 3 else -2  # what moved comes back
        for parameter in model.parameters():
            parameter.grad = sign * (torch.rand_like(parameter) + 0.5)
        optimizer.step()
        history.append(bits())
        publishers.after_step(step)
    came_back = 0
    for interval in publishers.finish(engine):
        k = interval.every
        assert interval.replay_differences == 0
        assert len(interval.versions) == 6 // k
        for i, version in enumerate(interval.versions):
            span = history[i * k : i * k + k + 1]
            moved = torch.zeros_like(span[0], dtype=torch.bool)
            for old, new in itertools.pairwise(span):
                moved |= old != new
            assert version.true == int((span[0] != span[-1]).sum()) > 0
            assert version.moved == int(moved.sum())
            assert version.true <= version.sent <= version.true + version.uncertain + version.dense
            came_back += version.moved - version.true
        written = sum(path.stat().st_size for path in (tmp_path / f"every-{k}").rglob("*") if path.is_file())
        assert 0 < sum(version.bytes for version in interval.versions) < written
    assert came_back > 0
    assert publishers.elements == history[0].numel()


def test_replay_is_compared_with_the_masters(tmp_path):
    start = small_start()
    optimizer = torch.optim.AdamW(start.model.parameters(), lr=1e-3, fused=True)
    publishers = Publishers(start.model, optimizer, [1], tmp_path, None, 1)
    for parameter in start.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    publishers.after_step(1)
    publishers._truth._last_step[0][:3] ^= 1
    assert [interval.replay_differences for interval in publishers.finish(start.engine)] == [3]


# The whole ------------------------------------------------------------------------------------------------


def test_summary_of_a_record(tmp_path):
    version = {"true": 10, "moved": 12, "sent": 11, "uncertain": 1, "dense": 0, "bytes": 15}
    other = {"true": 30, "moved": 36, "sent": 33, "uncertain": 3, "dense": 0, "bytes": 45}
    record = {
        "workload": "arithmetic",
        "learning_rate": 1e-6,
        "seed": 1,
        "steps": 8,
        "warmup": 0,
        "elements": 1000,
        "reward_first_quarter": 0.25,
        "reward_last_quarter": 0.5,
        "still_steps": 0,
        "intervals": [{"every": 4, "versions": [version, other], "replay_differences": 0}],
    }
    (row,) = rows_of([record])
    assert (row.true_mean, row.true_worst, row.union_mean) == pytest.approx((0.02, 0.03, 0.024))
    assert (row.sent_mean, row.uncertain_mean, row.bytes_a_change) == pytest.approx((0.022, 0.002, 1.5))
    table = as_markdown([record])
    assert "| arithmetic | 1e-06 | 2 (3) |" in table
    assert "| 1e-06 | 4 | 1.200 | 1.1000 | 0.2000 | 1.50 |" in table
    if draw([record], tmp_path / "density.svg"):  # where matplotlib is installed
        assert "lr 1e-06" in (tmp_path / "density.svg").read_text()


@pytest.fixture
def process(monkeypatch):
    """What the command sets for its process is put back."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_folder_is_the_command():
    done = subprocess.run(
        [sys.executable, BENCH, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("usage: ./dev bench density")


def test_small_slice_of_all_runs_and_is_not_run_again(tmp_path, capsys, process):
    arguments = [
        "--quick",
        *("--workloads", "tools,moe", "--rates", "1e-4", "--every", "1,2", "--steps", "4", "--warmup", "1"),
        *("--out", str(tmp_path / "out"), "--stores", str(tmp_path)),
    ]
    assert density.main(arguments) == 0
    said = capsys.readouterr()
    assert "| tools | 0.0001 |" in said.out and "| moe | 0.0001 |" in said.out
    assert "seed 1" in said.err
    with open(tmp_path / "out" / "density.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["workload"], row["every"], row["versions"]) for row in rows] == [
        ("moe", "1", "4"),
        ("moe", "2", "2"),
        ("tools", "1", "4"),
        ("tools", "2", "2"),
    ]
    assert all(row["replay_differences"] == "0" for row in rows)
    assert all(0 < float(row["true_mean"]) <= float(row["union_mean"]) < 1 for row in rows[:2])
    assert list(tmp_path.iterdir()) == [tmp_path / "out"], "a store was left behind"

    before = (tmp_path / "out" / "density.jsonl").read_text()
    assert density.main(arguments) == 0
    assert "tools at lr 0.0001 is in" in capsys.readouterr().err
    journal = (tmp_path / "out" / "density.jsonl").read_text()
    assert journal == before

    # A receiver that differs is an error of the whole.
    record = json.loads(journal.splitlines()[0])
    record["intervals"][0]["replay_differences"] = 1
    (tmp_path / "out" / "density.jsonl").write_text(
        json.dumps(record) + "\n" + journal.splitlines()[1] + "\n"
    )
    assert density.main(arguments) == 1


def test_unknown_workload_is_an_error(capsys, process):
    assert density.main(["--quick", "--workloads", "chess"]) == 2
    assert "chess" in capsys.readouterr().err
