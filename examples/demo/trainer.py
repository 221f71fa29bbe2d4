"""The training run: policy-gradient steps on FP32 masters, published to engines that sample meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltawire as dw
import torch
from arithmetic import prompt_of, random_problem, reward_of
from base_model import PreparedBase
from fleet import Fleet, Request, Rollout
from memory import peak_rss_bytes
from policy import group_advantages, policy_loss
from record import PublishedVersion, Run
from tensor_hashes import bit_differences, tensor_hashes
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

_LEARNING_RATE = 1e-6
_WEIGHT_DECAY = 0.01
"""torch's default for AdamW. At this learning rate its factor 1 - 1e-8 rounds to 1 in FP32: the optimizer
runs the decoupled decay, as most users have it, and the detector has to get that rounding right."""
_PROBLEMS_PER_REQUEST = 2
_SAMPLES = 8
_REQUESTS_PER_STEP = 2
_MAX_TOKENS = 6


@dataclass(frozen=True)
class Settings:
    """What the command line decides."""

    steps: int
    publish_every: int
    engines: int
    seed: int
    threads: int

    @property
    def versions(self) -> int:
        """Versions after the base: one every ``publish_every`` steps, and the last step's."""
        return -(-self.steps // self.publish_every)


class ProblemSource:
    """Draws the requests: seeded problems, as token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        (self._stop_token,) = tokenizer("\n", add_special_tokens=False)["input_ids"]

    def draw(self) -> Request:
        problems = [random_problem(self._rng) for _ in range(_PROBLEMS_PER_REQUEST)]
        prompts = self._tokenizer([prompt_of(problem) for problem in problems], add_special_tokens=False)
        return Request(
            seed=self._rng.getrandbits(40),
            problems=problems,
            prompts=prompts["input_ids"],
            samples=_SAMPLES,
            max_tokens=_MAX_TOKENS,
            stop_token=self._stop_token,
        )


class Trainer:
    """The FP32 model, its optimizer, and one policy-gradient step."""

    def __init__(self, masters: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        # eval() turns dropout off (this model has none), so that the loss sees the probabilities the engines
        # saw.
        self.model = AutoModelForCausalLM.from_pretrained(masters, dtype=torch.float32).eval()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=_LEARNING_RATE,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=_WEIGHT_DECAY,
            fused=True,
        )
        self._tokenizer = tokenizer

    def step(self, rollouts: list[Rollout]) -> float:
        """One optimizer step on all rollouts. Returns their mean reward."""
        self.optimizer.zero_grad(set_to_none=False)
        rewards = [self._rewards(rollout) for rollout in rollouts]
        for rollout, earned in zip(rollouts, rewards, strict=True):
            prompts = torch.tensor(rollout.request.prompts).repeat_interleave(_SAMPLES, dim=0)
            advantages = group_advantages(earned, _SAMPLES)
            loss = policy_loss(self.model, prompts, rollout.completions, advantages)
            (loss / len(rollouts)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return torch.cat(rewards).mean().item()

    def _rewards(self, rollout: Rollout) -> torch.Tensor:
        completions = rollout.completions
        texts = [
            self._tokenizer.decode(tokens[:length])
            for tokens, length in zip(completions.tokens, completions.lengths, strict=True)
        ]
        problems = [problem for problem in rollout.request.problems for _ in range(_SAMPLES)]
        return torch.tensor([reward_of(p, text) for p, text in zip(problems, texts, strict=True)])


def fault_plan(versions: int, engines: int) -> tuple[int, int]:
    """The versions after which the last engine is killed and restarted: half way, and a good while later.

    A lone engine is restarted at once, because nobody else could sample meanwhile.
    """
    kill = max(1, versions // 2)
    return (kill, kill) if engines == 1 else (kill, max(kill, 3 * versions // 4))


def train(
    settings: Settings, base: PreparedBase, url: str, work_folder: Path, run: Run, say: Callable[[str], None]
) -> None:
    """Does the whole run. Fills ``run`` as it goes, so that a failure, which raises, leaves what was
    known."""
    started = time.perf_counter()
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    tokenizer = AutoTokenizer.from_pretrained(base.masters)
    source = ProblemSource(tokenizer, settings.seed)
    with Fleet(settings.engines, base.serving, work_folder, source.draw) as fleet:
        run.evidence = fleet.evidence
        say(f"loading the model into the trainer and {settings.engines} engines")
        trainer = Trainer(base.masters, tokenizer)
        with dw.Publisher(trainer.model, trainer.optimizer, url, base=str(base.serving)) as publisher:
            _describe_base(trainer.model, publisher, settings, run)
            fleet.attach(url)
            _loop(settings, trainer, publisher, fleet, run)
            say("last checks: each engine re-reads its weights and writes them out for a full compare")
            run.farewells = fleet.finish()
            for farewell in run.farewells:
                run.final_bit_differences[farewell.engine] = bit_differences(trainer.model, farewell.file)
                farewell.file.unlink()
    run.trainer_peak_rss_bytes = peak_rss_bytes()
    run.run_seconds = time.perf_counter() - started


def _describe_base(model: torch.nn.Module, publisher: dw.Publisher, settings: Settings, run: Run) -> None:
    run.base_hashes = tensor_hashes(model, settings.threads)
    run.base_digest = publisher.digest
    run.tensors = len(run.base_hashes)
    run.model_bytes = sum(2 * parameter.numel() for parameter in model.parameters())


def _loop(settings: Settings, trainer: Trainer, publisher: dw.Publisher, fleet: Fleet, run: Run) -> None:
    kill_at, rejoin_at = fault_plan(settings.versions, settings.engines)
    victim = settings.engines - 1
    since_publish: list[float] = []
    for step in tqdm(range(1, settings.steps + 1), desc="training", unit="step", disable=None):
        start = time.perf_counter()
        rollouts = fleet.collect(_REQUESTS_PER_STEP)
        sampled = time.perf_counter()
        reward = trainer.step(rollouts)
        run.train_seconds.append(time.perf_counter() - sampled)
        run.wait_seconds.append(sampled - start)
        run.sample_seconds += [rollout.seconds for rollout in rollouts]
        run.completions += sum(len(rollout.completions.lengths) for rollout in rollouts)
        run.lags += [len(run.versions) - rollout.version for rollout in rollouts]
        run.rewards.append(reward)
        since_publish.append(reward)
        if step % settings.publish_every and step != settings.steps:
            continue
        number = _publish(settings, trainer.model, publisher, step, since_publish, run)
        since_publish = []
        fleet.announce(number)
        if number == kill_at:
            fleet.kill(victim)
            run.killed_engine, run.killed_at_version = victim, number
        if number == rejoin_at:
            fleet.restart(victim)
            run.rejoined_at_version = number


def _publish(
    settings: Settings,
    model: torch.nn.Module,
    publisher: dw.Publisher,
    step: int,
    rewards: list[float],
    run: Run,
) -> int:
    version = publisher.publish()
    run.versions.append(
        PublishedVersion(
            number=version.number,
            step=step,
            changed=version.changed,
            uncertain=version.uncertain,
            total=version.total,
            sent_bytes=version.bytes,
            is_patch=version.base is not None,
            publish_seconds=version.seconds,
            detectors={name: use.tensors for name, use in version.detectors.items()},
            digest=version.digest,
            hashes=tensor_hashes(model, settings.threads),
            reward=sum(rewards) / len(rewards),
        )
    )
    return version.number
