"""deltawire.explain: what a publisher would choose, without one."""

from __future__ import annotations

import deltawire as dw
import pytest
import torch
from small_models import Bag, Mlp


def mixed() -> tuple[torch.nn.Module, list[torch.optim.Optimizer]]:
    model = Mlp()
    model.down.to(torch.bfloat16)
    model.norm.bias.requires_grad_(False)
    own = type("Own", (torch.optim.AdamW,), {})
    return model, [
        torch.optim.AdamW([*model.up.parameters(), model.down.weight]),
        own([model.norm.weight, model.down.bias]),
    ]


@pytest.mark.parametrize("detector", ["auto", "snapshot"])
def test_it_says_what_a_publisher_then_does(url: str, detector: str) -> None:
    model, optimizers = mixed()
    explained = dw.explain(model, optimizers, detector)
    assert not optimizers[0]._optimizer_step_pre_hooks and "step" not in vars(optimizers[0])
    publisher = dw.Publisher(model, optimizers, url, detector=detector)
    assert {row.tensor: (row.detector, row.reason) for row in explained} == publisher.detectors
    assert len(explained) == len(publisher.detectors)
    assert publisher.metrics()["deltawire/memory_bytes"] >= explained.bytes


def test_memory_by_detector() -> None:
    model, optimizers = mixed()
    rows = {row.tensor: row for row in dw.explain(model, optimizers)}
    assert rows["up.weight"].detector == "inversion" and rows["up.weight"].bytes_a_parameter == 0
    assert rows["down.weight"].detector == "capture" and rows["down.weight"].bytes_a_parameter == 0
    assert rows["norm.weight"].detector == "snapshot" and rows["norm.weight"].bytes_a_parameter == 2
    assert rows["norm.bias"].detector == "fence" and rows["norm.bias"].reason == "frozen"
    assert rows["seen"].elements == 3
    kept = dw.explain(model, optimizers, dtype={"norm.weight": None})
    assert {row.tensor: row.bytes_a_parameter for row in kept}["norm.weight"] == 4


def test_quantised_weights() -> None:
    model = Bag({"w": torch.randn(256, 128)})
    optimizer = torch.optim.AdamW(model.parameters())
    rule = {"w": dw.Fp8("channel")}
    (row,) = dw.explain(model, optimizer, dtype=rule)
    assert row.detector == "copy_back" and row.bytes_a_parameter == 1 + 4 / 128
    (row,) = dw.explain(model, optimizer, "snapshot", dtype=rule)
    assert row.detector == "snapshot" and row.bytes_a_parameter == 2 * (1 + 4 / 128)


def test_the_table() -> None:
    model, optimizers = mixed()
    lines = str(dw.explain(model, optimizers)).splitlines()
    assert lines[0].split() == ["detector", "tensors", "elements", "B/parameter", "reason"]
    assert lines[1].startswith("capture") and "down.weight" in lines[1]
    inversion = next(line for line in lines if line.startswith("inversion"))
    assert "1,584" in inversion and "up.weight ... up.bias" in inversion


def test_it_refuses_what_a_publisher_refuses() -> None:
    model, _ = mixed()
    with pytest.raises(dw.Error, match="is not one of"):
        dw.explain(model, None, "guess")
    with pytest.raises(dw.Error, match="none of them is the model's"):
        dw.explain(model, torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))]))
    with pytest.raises(dw.Error, match=r"tensor down\.weight can't use inversion: .* BF16 as BF16"):
        dw.explain(model, torch.optim.AdamW(model.parameters()), "inversion")
    with pytest.raises(dw.Error, match=r"not a torch\.optim\.Optimizer"):
        dw.explain(model, "adam")
