"""Sampling from a causal language model, and the policy-gradient loss on what was sampled.

R is the number of rows (prompts times samples of each), P the tokens of a prompt (equal in all rows), T the
tokens of the longest completion.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True)
class Completions:
    """Sampled continuations: what was chosen, and how likely the sampler thought each choice."""

    tokens: torch.Tensor
    """int64 [R, T]; after a row's end its stop token is repeated."""
    log_probs: torch.Tensor
    """float32 [R, T], at temperature 1 under the weights that sampled."""
    lengths: torch.Tensor
    """int64 [R]: tokens of each row that count, the stop token included."""


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: torch.Tensor,
    max_tokens: int,
    stop_token: int,
    generator: torch.Generator,
) -> Completions:
    """Samples one completion for each row of ``prompts`` (int64 [R, P]) at temperature 1, with a KV cache."""
    cache = DynamicCache(config=model.config)
    rows = prompts.shape[0]
    lengths = torch.full((rows,), max_tokens)
    ended = torch.zeros(rows, dtype=torch.bool)
    tokens, log_probs = [], []
    inputs = prompts
    for position in range(max_tokens):
        logits = model(input_ids=inputs, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        distribution = functional.log_softmax(logits.float(), dim=-1)
        chosen = torch.multinomial(distribution.exp(), 1, generator=generator)
        chosen[ended] = stop_token
        tokens.append(chosen)
        log_probs.append(distribution.gather(1, chosen))
        ends_here = (chosen[:, 0] == stop_token) & ~ended
        lengths[ends_here] = position + 1
        ended |= ends_here
        if bool(ended.all()):
            break
        inputs = chosen
    return Completions(torch.cat(tokens, 1), torch.cat(log_probs, 1), lengths)


def group_advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Normalises rewards (float32 [R]) in groups of ``group`` consecutive rows: zero mean, unit deviation.

    A group whose samples all earned the same has nothing to say, and gets zeros.
    """
    grouped = rewards.reshape(-1, group)
    centred = grouped - grouped.mean(1, keepdim=True)
    return (centred / (grouped.std(1, keepdim=True) + 1e-4)).reshape(-1)


def policy_loss(
    model: PreTrainedModel,
    prompts: torch.Tensor,
    completions: Completions,
    advantages: torch.Tensor,
    clip: float = 0.2,
) -> torch.Tensor:
    """The clipped policy-gradient loss, a scalar: the mean over all sampled tokens.

    The engines sample while the trainer steps, so a completion may come from weights a version or two old,
    and from BF16 arithmetic; the ratio of the probabilities, now and when sampled, corrects for both.
    """
    length = completions.tokens.shape[1]
    inputs = torch.cat([prompts, completions.tokens], dim=1)
    logits = model(input_ids=inputs, use_cache=False, logits_to_keep=length + 1).logits[:, :-1]
    log_probs = functional.log_softmax(logits.float(), dim=-1).gather(2, completions.tokens[:, :, None])[
        :, :, 0
    ]
    ratio = (log_probs - completions.log_probs).exp()
    gain = advantages[:, None]
    objective = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    counted = torch.arange(length)[None, :] < completions.lengths[:, None]
    return -(objective * counted).sum() / counted.sum()
