"""What a run starts from: FP32 masters, the model that samples, and the text codec that goes with them."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from base_model import prepare
from episodes import Text
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from workloads import WORKLOADS, Task, Workload


class TokenizerText:
    """A Hugging Face tokenizer without special tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        (self.stop_token,) = self.encode("\n")

    def encode(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens)


class ByteText:
    """A vocabulary of the 256 bytes of Latin-1."""

    stop_token = ord("\n")

    def encode(self, text: str) -> list[int]:
        return list(text.encode("latin-1"))

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("latin-1")


@dataclass(frozen=True)
class Start:
    model: PreTrainedModel
    """FP32 masters."""
    engine: PreTrainedModel
    """BF16, the cast of the masters: what samples, and what the teacher is."""
    text: Text
    base: Path | None
    """A checkpoint near to these weights that receivers have; None: version 0 is a whole checkpoint."""


@dataclass(frozen=True)
class ColdStart:
    """Supervised steps on solved tasks of all kinds, after the demo's preparation: without them the model
    does not know the tools, and earns nothing that could be compared. A change of any value makes another
    start."""

    revision: int = 1
    steps: int = 40
    rows: int = 4
    row_tokens: int = 40
    learning_rate: float = 3e-5
    seed: int = 21


def start_of(
    workload: Workload, seed: int, quick: bool, cache: Path, demo_cache: Path, say: Callable[[str], None]
) -> Start:
    """Loads or makes the start of a workload. Quick: a tiny model with random weights, nothing is loaded."""
    if quick or workload.model == "moe":
        torch.manual_seed(seed)
        model: PreTrainedModel = _random_moe(quick) if workload.model == "moe" else _random_llama()
        text: Text = ByteText()
        base = None
        if workload.model != "moe":
            _supervise(model, text, ColdStart(steps=20, learning_rate=3e-3))
    else:
        folder = _cold_started(cache, demo_cache, say)
        model = AutoModelForCausalLM.from_pretrained(folder / "masters", dtype=torch.float32)
        text = TokenizerText(AutoTokenizer.from_pretrained(folder / "masters"))
        base = folder / "base"
    model.eval()
    if workload.bf16_start:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(torch.bfloat16))
    return Start(model, copy.deepcopy(model).to(torch.bfloat16).requires_grad_(False), text, base)


def _random_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def _random_moe(tiny: bool) -> Qwen3MoeForCausalLM:
    """13 million weights, 12.6 of them in 4 times 32 experts of which a token uses 4; or a tiny one."""
    width = 64 if tiny else 256
    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=2 * width,
        moe_intermediate_size=width // 2,
        num_hidden_layers=2 if tiny else 4,
        num_attention_heads=width // 32,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8 if tiny else 32,
        num_experts_per_tok=2 if tiny else 4,
        tie_word_embeddings=True,
    )
    return Qwen3MoeForCausalLM(config)


def _cold_started(cache: Path, demo_cache: Path, say: Callable[[str], None]) -> Path:
    """The folder with masters/ (FP32) and base/ (BF16). It appears under its name only when complete."""
    recipe = ColdStart()
    prepared = prepare(demo_cache, say).masters
    identity = json.dumps([prepared.parent.name, asdict(recipe)], sort_keys=True)
    home = cache / f"cold-start-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if home.is_dir():
        return home
    say(f"{recipe.steps} supervised steps on solved tasks, once, into {home}")
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="preparing-", dir=cache))
    try:
        tokenizer = AutoTokenizer.from_pretrained(prepared)
        model = AutoModelForCausalLM.from_pretrained(prepared, dtype=torch.float32)
        _supervise(model, TokenizerText(tokenizer), recipe)
        for name, dtype in (("masters", torch.float32), ("base", torch.bfloat16)):
            model.to(dtype).save_pretrained(unfinished / name)
            tokenizer.save_pretrained(unfinished / name)
        os.rename(unfinished, home)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return home


def _supervise(model: PreTrainedModel, text: Text, recipe: ColdStart) -> None:
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.0, fused=True)
    model.train()
    kinds = [WORKLOADS[name].draw for name in ("arithmetic", "tools", "format")]
    for _ in range(recipe.steps):
        rows = []
        for _ in range(recipe.rows):
            tokens: list[int] = []
            while len(tokens) < recipe.row_tokens:
                tokens += text.encode(solved_text(rng.choice(kinds).random(rng)))
            rows.append(tokens[: recipe.row_tokens])
        batch = torch.tensor(rows)
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def solved_text(task: Task) -> str:
    """A whole episode that earns the full reward."""
    out = task.prompt
    for done in range(1, len(task.solution) + 1):
        out += task.solution[done - 1] + (task.reply(task.solution[:done]) or "")
    return out
