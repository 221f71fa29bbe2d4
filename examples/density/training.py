"""One training run of a workload at one learning rate, published at every interval at once."""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from episodes import Episodes, distillation_loss, play, policy_loss
from policy import group_advantages
from starts import Start, start_of
from transformers import PreTrainedModel
from versions import Publishers
from workloads import Task, Workload

WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.999)
TEACHER_TEMPERATURE = 0.5


@dataclass(frozen=True)
class Settings:
    every: list[int]
    """Publish intervals, in steps."""
    steps: int
    """Observed optimizer steps."""
    warmup: int
    """Steps at the same learning rate before anybody observes: Adam's first steps move everything by lr."""
    seed: int
    quick: bool
    threads: int
    cache: Path
    demo_cache: Path
    stores: Path
    """Where the stores lie while a run lasts; a tmpfs serves best."""


@dataclass(frozen=True)
class _Part:
    """What one optimizer step learns from."""

    episodes: Episodes
    advantages: torch.Tensor
    reward: float


class _Learner:
    """Masters, optimizer, and the BF16 model that samples."""

    def __init__(self, workload: Workload, start: Start, learning_rate: float, seed: int) -> None:
        self._workload = workload
        self._start = start
        self.optimizer = torch.optim.AdamW(
            start.model.parameters(),
            lr=learning_rate,
            betas=BETAS,
            eps=1e-8,
            weight_decay=WEIGHT_DECAY,
            fused=True,
        )
        self._teacher = copy.deepcopy(start.engine) if workload.loss == "distillation" else None
        self._rng = random.Random(seed)
        self._samples = torch.Generator().manual_seed(seed)
        self._parts: list[_Part] = []
        self.rewards: list[float] = []
        """Mean reward of the episodes of each step so far."""
        self.still_steps = 0
        """Steps whose gradient was zero, because all samples of a task earned the same."""

    def step(self) -> None:
        """One optimizer step."""
        if not self._parts:
            self._parts = self._play()
        part = self._parts.pop(0)
        model = self._start.model
        self.optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self._loss(part)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.optimizer.step()
        _cast_into(self._start.engine, model)
        self.rewards.append(part.reward)
        self.still_steps += not norm

    def _play(self) -> list[_Part]:
        shape, start = self._workload.shape, self._start
        tasks: list[Task] = [
            self._workload.draw.random(self._rng) for _ in range(shape.tasks * shape.steps_a_batch)
        ]
        episodes = play(start.engine, start.text, tasks, shape, self._samples)
        rewards = _rewards(tasks, episodes, shape.samples)
        advantages = group_advantages(rewards, shape.samples) if shape.samples > 1 else rewards
        rows = shape.tasks * shape.samples
        parts = [slice(i, i + rows) for i in range(0, len(rewards), rows)]
        return [_Part(episodes.part(p), advantages[p], rewards[p].mean().item()) for p in parts]

    def _loss(self, part: _Part) -> torch.Tensor:
        if self._teacher is not None:
            return distillation_loss(self._start.model, self._teacher, part.episodes, TEACHER_TEMPERATURE)
        return policy_loss(self._start.model, part.episodes, part.advantages)


def _rewards(tasks: list[Task], episodes: Episodes, samples: int) -> torch.Tensor:
    """float32 [R]"""
    return torch.tensor(
        [tasks[row // samples].reward(lines) for row, lines in enumerate(episodes.lines)], dtype=torch.float32
    )


@torch.no_grad()
def _cast_into(engine: PreTrainedModel, model: PreTrainedModel) -> None:
    for served, master in zip(engine.parameters(), model.parameters(), strict=True):
        served.copy_(master)


def train(
    workload: Workload, learning_rate: float, settings: Settings, say: Callable[[str], None]
) -> dict[str, object]:
    """Does the run. Returns its record, ready for JSON."""
    began = time.perf_counter()
    torch.set_num_threads(settings.threads)
    start = start_of(workload, settings.seed, settings.quick, settings.cache, settings.demo_cache, say)
    learner = _Learner(workload, start, learning_rate, settings.seed)
    receiver = copy.deepcopy(start.engine)
    for _ in range(settings.warmup):
        learner.step()
    folder = Path(tempfile.mkdtemp(prefix="density-", dir=settings.stores))
    try:
        publishers = Publishers(
            start.model, learner.optimizer, settings.every, folder, start.base, settings.threads
        )
        try:
            for step in range(1, settings.steps + 1):
                learner.step()
                publishers.after_step(step)
                if step % 16 == 0:
                    say(
                        f"{workload.name} at lr {learning_rate:g}: step {step} of {settings.steps}, "
                        f"{time.perf_counter() - began:.0f} s, mean reward of 16 steps "
                        f"{sum(learner.rewards[-16:]) / 16:.3f}"
                    )
            intervals = publishers.finish(receiver)
        finally:
            publishers.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rewards = learner.rewards
    quarter = max(1, len(rewards) // 4)
    return {
        "workload": workload.name,
        "learning_rate": learning_rate,
        "seed": settings.seed,
        "steps": settings.steps,
        "warmup": settings.warmup,
        "quick": settings.quick,
        "elements": publishers.elements,
        "detectors": publishers.detectors,
        "reward_first_quarter": sum(rewards[:quarter]) / quarter,
        "reward_last_quarter": sum(rewards[-quarter:]) / quarter,
        "still_steps": learner.still_steps,
        "seconds": time.perf_counter() - began,
        "intervals": [interval.as_json() for interval in intervals],
    }
