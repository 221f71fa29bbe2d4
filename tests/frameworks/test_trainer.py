"""Hugging Face's Trainer with the callback of docs/frameworks.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from oracle import assert_exact, engine_of
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Publish(TrainerCallback):
    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any
    ) -> None:
        self.publisher = dw.Publisher(model, optimizer, Path(args.output_dir) / "run")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.publisher.publish()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.publisher.close()


class Check(Publish):
    """The same, and an engine that follows."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        super().on_step_end(args, state, control)
        if state.global_step == 1:
            self.engine = engine_of(model)
            self.subscriber = dw.Subscriber(Path(args.output_dir) / "run", self.engine)
        self.subscriber.update()
        assert_exact(model, self.engine)
        version = self.publisher.version
        assert (version.number, version.steps) == (state.global_step, 1)
        assert not version.notes
        assert 0 < version.changed < version.total
        assert self.publisher.detectors["model.norm.weight"][0] == self.method


@pytest.mark.parametrize(("optim", "method"), [("adamw_torch", "inversion"), ("adafactor", "snapshot")])
def test_trainer(tmp_path: Path, optim: str, method: str) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    rows = [{"input_ids": torch.randint(64, (8,)), "labels": torch.randint(64, (8,))} for _ in range(12)]
    check = Check()
    check.method = method
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        optim=optim,
        learning_rate=1e-5,
        weight_decay=0.1,
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
    )
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[check]).train()
    assert check.publisher.version.number == 3
