"""What the policy is trained on: tasks that a program poses, answers turn by turn, and grades.

A task is played as text. The policy sees ``prompt``, writes a line, and gets ``reply`` to it, until there is
none. Every reward is computed by checking what was written, never by a model.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import Protocol

from arithmetic import Problem, prompt_of, random_problem, reward_of


class Task(Protocol):
    prompt: str
    solution: list[str]
    """Lines that earn the full reward, each with its end of line."""

    def reply(self, lines: list[str]) -> str | None:
        """What the environment answers to the last line, with its end of line; None: the episode is over."""

    def reward(self, lines: list[str]) -> float:
        """Of everything that the policy wrote, in [0, 1]."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one optimizer step: ``tasks`` times ``samples`` episodes of up to ``turns`` lines."""

    tasks: int
    samples: int
    turns: int
    turn_tokens: int
    """A line that is not ended by then ends there."""
    steps_a_batch: int = 4
    """Optimizer steps whose episodes are played together, by one state of the weights. Usual in policy
    gradient, and a token of many rows costs hardly more than one of few."""


class Addition:
    """The demo's problem as a task of one line."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.prompt = prompt_of(problem)
        self.solution = [f" {sum(problem)}\n"]

    @staticmethod
    def random(rng: random.Random) -> Addition:
        return Addition(random_problem(rng))

    def reply(self, lines: list[str]) -> str | None:
        return None

    def reward(self, lines: list[str]) -> float:
        return reward_of(self._problem, lines[0])


_READ = re.compile(r"read (\w)")
_CALC = re.compile(r"calc (\d+) \+ (\d+)")
_ANSWER = re.compile(r"answer (\d+)")


@dataclass
class FileSum:
    """Tool use: the sum of a number and one in a file, which must be read first. Up to three lines.

    Tools: ``read NAME`` gives a file's text, ``calc A + B`` a sum, ``answer N`` ends the episode. Anything
    else is answered by ``error``.
    """

    files: dict[str, int]
    name: str
    addend: int
    prompt: str = field(init=False)
    solution: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = f"add {self.name} and {self.addend}\n"
        self.solution = [
            f"read {self.name}\n",
            f"calc {self.files[self.name]} + {self.addend}\n",
            f"answer {self._right}\n",
        ]

    @staticmethod
    def random(rng: random.Random) -> FileSum:
        files = {name: rng.randint(10, 99) for name in "abcd"}
        return FileSum(files, rng.choice("abcd"), rng.randint(2, 9))

    @property
    def _right(self) -> int:
        return self.files[self.name] + self.addend

    def reply(self, lines: list[str]) -> str | None:
        line = lines[-1].strip()
        if len(lines) == len(self.solution) or _ANSWER.fullmatch(line):
            return None
        if (read := _READ.fullmatch(line)) and read[1] in self.files:
            return f"{self.files[read[1]]}\n"
        if calc := _CALC.fullmatch(line):
            return f"{int(calc[1]) + int(calc[2])}\n"
        return "error\n"

    def reward(self, lines: list[str]) -> float:
        """0.2 for reading the right file, 0.2 for the right sum asked of the calculator, 0.1 for ending with
        an answer and 0.5 for the right one."""
        stripped = [line.strip() for line in lines]
        read = f"read {self.name}" in stripped
        calc = self.solution[1].strip() in stripped
        answer = _ANSWER.fullmatch(stripped[-1])
        right = answer is not None and int(answer[1]) == self._right
        return 0.2 * read + 0.2 * calc + 0.1 * (answer is not None) + 0.5 * right


_COLOURS = ("red", "blue", "green", "black", "white", "pink")


@dataclass
class Form:
    """Format following: a colour and a number, to be written in the format that is asked for."""

    kind: str
    colour: str
    number: int
    prompt: str = field(init=False)
    solution: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = f"{self.kind}: {self.colour} {self.number}\n"
        self.solution = [
            {
                "json": json.dumps({"color": self.colour, "number": self.number}),
                "csv": f"{self.colour},{self.number}",
                "list": f"[{self.colour}, {self.number}]",
                "pairs": f"color={self.colour} number={self.number}",
            }[self.kind]
            + "\n"
        ]

    @staticmethod
    def random(rng: random.Random) -> Form:
        kind = rng.choice(("json", "csv", "list", "pairs"))
        return Form(kind, rng.choice(_COLOURS), rng.randint(2, 99))

    def reply(self, lines: list[str]) -> str | None:
        return None

    def reward(self, lines: list[str]) -> float:
        """1 for the format with the right values; without it up to 0.6, by the share of the right line that
        was written before the first wrong character."""
        line, right = lines[0], self.solution[0]
        if line == right or (self.kind == "json" and self._is_right_json(line)):
            return 1.0
        common = next(
            (i for i, (x, y) in enumerate(zip(line, right, strict=False)) if x != y),
            min(len(line), len(right)),
        )
        return 0.6 * common / len(right)

    def _is_right_json(self, line: str) -> bool:
        # Spaces and the order of the keys are free in JSON.
        try:
            found = json.loads(line)
        except ValueError:
            return False
        return found == {"color": self.colour, "number": self.number}


class Parity:
    """For a model that knows no language: write characters whose codes are all even, or all odd."""

    def __init__(self, odd: bool, noise: str = "") -> None:
        self._odd = odd
        self.prompt = ("odd" if odd else "even") + f" {noise}:"
        self.solution = [("a" if odd else "b") * 6]

    @staticmethod
    def random(rng: random.Random) -> Parity:
        return Parity(rng.random() < 0.5, "".join(rng.choice("abcdefgh") for _ in range(4)))

    def reply(self, lines: list[str]) -> str | None:
        return None

    def reward(self, lines: list[str]) -> float:
        """The share of right characters."""
        line = lines[0].rstrip("\n")
        return sum(ord(character) % 2 == self._odd for character in line) / max(1, len(line))


@dataclass(frozen=True)
class Workload:
    name: str
    draw: type[Addition | FileSum | Form | Parity]
    """Its ``random(rng)`` poses a task."""
    shape: Shape
    loss: str = "policy gradient"
    """Or "distillation": the reverse divergence from a frozen copy on the student's own samples, no reward in
    the loss."""
    model: str = "smollm2"
    """Or "moe": a small mixture of experts with random weights, on bytes."""
    bf16_start: bool = False
    """Masters rounded to BF16 before the first step, as when training starts from a BF16 checkpoint."""


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("arithmetic", Addition, Shape(tasks=2, samples=3, turns=1, turn_tokens=6)),
        Workload("tools", FileSum, Shape(tasks=1, samples=4, turns=3, turn_tokens=9)),
        Workload("format", Form, Shape(tasks=2, samples=3, turns=1, turn_tokens=14)),
        Workload("distillation", Addition, Shape(tasks=5, samples=1, turns=1, turn_tokens=6), "distillation"),
        Workload("moe", Parity, Shape(tasks=4, samples=8, turns=1, turn_tokens=12), model="moe"),
        Workload(
            "arithmetic-bf16-start",
            Addition,
            Shape(tasks=2, samples=3, turns=1, turn_tokens=6),
            bf16_start=True,
        ),
    )
}
"""By name. The last one is a comparison, run on request only."""
DEFAULT_WORKLOADS = tuple(name for name, workload in WORKLOADS.items() if not workload.bf16_start)
