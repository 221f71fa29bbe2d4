"""Playing tasks with a language model, and the losses on what was played.

R is the number of episodes (tasks times samples of each), L the columns of a transcript. Rows need different
numbers of tokens; a column that a row does not use is masked for it and takes no position, so that a row is
computed as if it stood alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel
from workloads import Shape, Task


class Text(Protocol):
    """Text to token ids and back."""

    stop_token: int
    """The id of the end of line."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: list[int]) -> str: ...


@dataclass(frozen=True)
class Episodes:
    """Transcripts of R episodes, samples of one task next to each other."""

    tokens: torch.Tensor
    """int64 [R, L]"""
    used: torch.Tensor
    """bool [R, L]: the row's own columns."""
    acted: torch.Tensor
    """bool [R, L]: tokens that the policy chose. The column before one is always used by the row."""
    log_probs: torch.Tensor
    """float32 [R, L]: of the choices, at temperature 1 under the weights that sampled; else 0."""
    lines: list[list[str]]
    """What the policy wrote, by episode and turn."""

    def part(self, rows: slice) -> Episodes:
        """Some of the rows, without the columns that none of them uses."""
        columns = self.used[rows].any(0)
        return Episodes(
            self.tokens[rows][:, columns],
            self.used[rows][:, columns],
            self.acted[rows][:, columns],
            self.log_probs[rows][:, columns],
            self.lines[rows],
        )

    @property
    def positions(self) -> torch.Tensor:
        """int64 [R, L]: the place of each token in its own row."""
        return (self.used.long().cumsum(1) - 1).clamp(min=0)


class _Transcript:
    """Grows by columns while the model plays."""

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._fed = 0
        self.tokens = torch.zeros(rows, 0, dtype=torch.int64)
        self.used = torch.zeros(rows, 0, dtype=torch.bool)
        self.acted = torch.zeros(rows, 0, dtype=torch.bool)
        self.log_probs = torch.zeros(rows, 0)

    def append_texts(self, texts: list[list[int]]) -> None:
        """Aligned to the right: the last new column is used by every row with a text."""
        width = max(map(len, texts))
        tokens = torch.tensor([[0] * (width - len(text)) + text for text in texts])
        used = torch.tensor([[False] * (width - len(text)) + [True] * len(text) for text in texts])
        self._append(tokens, used, torch.zeros_like(used), torch.zeros(used.shape))

    def choose(self, live: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Samples one token for each live row (bool [R]). Returns all rows' tokens, int64 [R]."""
        used = self.used.long()
        positions = (used.cumsum(1) - 1).clamp(min=0)
        hidden = self._model.model(
            input_ids=self.tokens[:, self._fed :],
            attention_mask=used,
            position_ids=positions[:, self._fed :],
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state
        # As a matrix: given a strided batch, torch would copy the head for each row.
        logits = self._model.lm_head(hidden[:, -1])
        self._fed = self.tokens.shape[1]
        distribution = functional.log_softmax(logits.float(), dim=-1)
        # What a row that is over gets to see may be anything; its choice is not used.
        weights = torch.where(live[:, None], distribution.exp(), 1.0)
        chosen = torch.multinomial(weights, 1, generator=generator)
        log_probs = torch.where(live[:, None], distribution.gather(1, chosen), 0.0)
        self._append(chosen, live[:, None], live[:, None], log_probs)
        return chosen[:, 0]

    def _append(
        self, tokens: torch.Tensor, used: torch.Tensor, acted: torch.Tensor, log_probs: torch.Tensor
    ) -> None:
        self.tokens = torch.cat([self.tokens, tokens], 1)
        self.used = torch.cat([self.used, used], 1)
        self.acted = torch.cat([self.acted, acted], 1)
        self.log_probs = torch.cat([self.log_probs, log_probs], 1)


@torch.no_grad()
def play(
    model: PreTrainedModel, text: Text, tasks: list[Task], shape: Shape, generator: torch.Generator
) -> Episodes:
    """Samples ``shape.samples`` episodes of each of any number of tasks at temperature 1."""
    players = [task for task in tasks for _ in range(shape.samples)]
    rows = len(players)
    transcript = _Transcript(model, rows)
    transcript.append_texts([text.encode(task.prompt) for task in players])
    lines: list[list[str]] = [[] for _ in players]
    playing = torch.ones(rows, dtype=torch.bool)
    for turn in range(shape.turns):
        start = transcript.tokens.shape[1]
        live = playing.clone()
        for _ in range(shape.turn_tokens):
            live &= transcript.choose(live, generator) != text.stop_token
            if not bool(live.any()):
                break
        replies: list[list[int]] = [[] for _ in players]
        for row in playing.nonzero()[:, 0].tolist():
            written = transcript.tokens[row, start:][transcript.acted[row, start:]]
            lines[row].append(text.decode(written.tolist()))
            reply = players[row].reply(lines[row]) if turn + 1 < shape.turns else None
            if reply is None:
                playing[row] = False
            else:
                replies[row] = text.encode(reply)
        if not bool(playing.any()):
            break
        transcript.append_texts(replies)
    return Episodes(transcript.tokens, transcript.used, transcript.acted, transcript.log_probs, lines)


def logits_of_actions(model: PreTrainedModel, episodes: Episodes) -> torch.Tensor:
    """float32 [A, vocabulary]: what the model thinks before each of the A acted tokens, row by row."""
    hidden = model.model(
        input_ids=episodes.tokens,
        attention_mask=episodes.used.long(),
        position_ids=episodes.positions,
        use_cache=False,
    ).last_hidden_state
    # The head is the largest product of a small model: only where it is needed.
    return model.lm_head(hidden[:, :-1][episodes.acted[:, 1:]]).float()


def policy_loss(
    model: PreTrainedModel, episodes: Episodes, advantages: torch.Tensor, clip: float = 0.2
) -> torch.Tensor:
    """The clipped policy-gradient loss (advantages: float32 [R]), a scalar: the mean over all acted tokens.

    The ratio of the probabilities, now and when sampled, corrects for the sampler's BF16 weights.
    """
    chosen = episodes.tokens[episodes.acted]
    log_probs = functional.log_softmax(logits_of_actions(model, episodes), dim=-1)
    ratio = (log_probs.gather(1, chosen[:, None])[:, 0] - episodes.log_probs[episodes.acted]).exp()
    gain = advantages[:, None].expand(episodes.acted.shape)[episodes.acted]
    return -torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()


def distillation_loss(
    model: PreTrainedModel, teacher: PreTrainedModel, episodes: Episodes, temperature: float
) -> torch.Tensor:
    """Mean reverse divergence KL(student || teacher) over all acted tokens, a scalar, in nats.

    ``temperature`` below 1 sharpens the teacher: a frozen copy at 1 would have nothing to teach.
    """
    with torch.no_grad():
        wanted = functional.log_softmax(logits_of_actions(teacher, episodes) / temperature, dim=-1)
    log_probs = functional.log_softmax(logits_of_actions(model, episodes), dim=-1)
    return (log_probs.exp() * (log_probs - wanted)).sum(-1).mean()
