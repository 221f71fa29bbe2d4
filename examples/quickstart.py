"""A trainer and an engine in two processes: after each version, the engine holds the trainer's bits."""

import multiprocessing
import tempfile

import deltawire as dw
import torch
from torch import nn


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))


def bits(model: nn.Module) -> bytes:
    served = [p.detach().to(torch.bfloat16).view(torch.int16) for p in model.parameters()]
    return b"".join(tensor.numpy().tobytes() for tensor in served)


def engine(url: str, trainer) -> None:
    model = network().to(torch.bfloat16)
    subscriber = dw.Subscriber(url, model)
    while trainer.recv():
        version = subscriber.update()  # verified before the first weight is written
        trainer.send((version.number, version.digest, bits(model)))


def train(url: str, engine) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with dw.Publisher(model, optimizer, url) as publisher:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            version = publisher.publish()
            engine.send(True)
            assert engine.recv() == (version.number, version.digest, bits(model))
            print(f"version {version.number}: {version.changed} of {version.total} weights changed,", end=" ")
            print(f"{version.bytes} bytes; the engine has the same bits")
    engine.send(False)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory() as url:
        process = spawn.Process(target=engine, args=(url, theirs), daemon=True)
        process.start()
        train(url, ours)
        process.join()
