"""The task of the demo: two-digit additions, and a reward that a program can check.

A problem is a pair (a, b) with 10 <= a, b <= 99, so that every prompt has the same number of tokens and a
batch needs no padding.
"""

from __future__ import annotations

import random
import re

Problem = tuple[int, int]

_ANSWER = re.compile(r"(\d+)(\n?)")


def random_problem(rng: random.Random) -> Problem:
    """Draws one problem."""
    return rng.randint(10, 99), rng.randint(10, 99)


def prompt_of(problem: Problem) -> str:
    """The text that the model continues, for example ``"17 + 25 ="``."""
    return f"{problem[0]} + {problem[1]} ="


def solved_line(problem: Problem) -> str:
    """Prompt and right answer as one line of training text, for example ``"17 + 25 = 42\\n"``."""
    return f"{prompt_of(problem)} {sum(problem)}\n"


def reward_of(problem: Problem, completion: str) -> float:
    """Grades a completion in [0, 1] by exact checks of its text.

    0.2 for an answer that is a number and nothing else up to the end of the line, 0.3 times the share of
    right digits (compared place by place from the right, a missing or extra place counts as wrong), and 0.5
    if the number is right. The partial credit is what makes the samples of one prompt differ, so that a
    policy gradient exists.
    """
    text = completion.strip(" ")
    match = _ANSWER.match(text)
    if match is None:
        return 0.0
    digits, expected = match.group(1), str(sum(problem))
    places = max(len(digits), len(expected))
    right = sum(x == y for x, y in zip(reversed(digits), reversed(expected), strict=False))
    well_formed = match.end() == len(text)
    return 0.2 * well_formed + 0.3 * right / places + 0.5 * (digits == expected)
