"""Checks of the reward: what it pays for, and that it can tell samples of one prompt apart."""

import random

import pytest
from arithmetic import prompt_of, random_problem, reward_of, solved_line


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (" 42\n", 1.0),
        (" 42", 1.0),
        (" 42 apples", 0.8),
        (" 43\n", 0.35),
        (" 142\n", 0.4),
        (" 2\n", 0.35),
        (" 7\n", 0.2),
        (" forty-two\n", 0.0),
        ("", 0.0),
    ],
)
def test_reward_grades_by_exact_checks(completion: str, expected: float) -> None:
    assert reward_of((17, 25), completion) == pytest.approx(expected)


def test_reward_of_the_solved_line_is_full() -> None:
    rng = random.Random(7)
    for _ in range(200):
        problem = random_problem(rng)
        assert reward_of(problem, solved_line(problem).removeprefix(prompt_of(problem))) == 1.0
