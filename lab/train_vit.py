"""Trains the small vision transformer that the demo embeds, on CIFAR-10.

    python lab/train_vit.py CIFAR10 --out vit.safetensors [--epochs 100]

Shifts, mirror images, mixup and erased squares, nothing that resembles a corruption of the
benchmark; AdamW with a cosine, and the average of the weights over the last epochs.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bombus.backbones import create
from bombus.backbones.weights import save_weights
from bombus.data.cifar import load_cifar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("--backbone", default="vit-demo")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(options.seed)
    x, y = (as_tensor(part, device) for part in load_cifar(options.cifar10, "train"))
    x = x.permute(0, 3, 1, 2)
    model = create(options.backbone, num_classes=10).to(device)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, weight_decay=0.05, fused=device.type == "cuda"
    )
    steps = options.epochs * (len(x) // options.batch_size)
    done, start = 0, time.perf_counter()
    for epoch in range(options.epochs):
        order = torch.randperm(len(x), device=device)
        for part in order.split(options.batch_size)[: len(x) // options.batch_size]:
            rise = min(1.0, done / (0.05 * steps))
            fall = 0.5 * (1 + math.cos(math.pi * done / steps))
            for group in optimizer.param_groups:
                group["lr"] = options.lr * rise * fall
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = mixed_loss(model, changed(x[part]), y[part])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(average.parameters()), list(model.parameters()), 1 / min(done + 1, 500)
                )
            done += 1
        if epoch % 10 == 9 or epoch == options.epochs - 1:
            seconds = time.perf_counter() - start
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
    print(f"clean error {test_error(average, options.cifar10, device):.2f} %", flush=True)
    save_weights(average.half(), options.out)


def as_tensor(array: object, device: torch.device) -> Tensor:
    return torch.as_tensor(array).to(device)


def changed(x: Tensor) -> Tensor:
    """Moved by up to 4 pixels, mirrored half of the time, with a square of 12 pixels erased."""
    n, _, side, _ = x.shape
    device = x.device
    padded = F.pad(x.float() / 255, (4, 4, 4, 4), mode="reflect")
    shift = torch.randint(0, 9, (2, n, 1, 1), device=device)
    line = torch.arange(side, device=device)
    rows, columns = shift[0] + line[:, None], shift[1] + line[None, :]
    rows, columns = rows.expand(n, side, side), columns.expand(n, side, side)
    which = torch.arange(n, device=device)[:, None, None]
    moved = padded[which, :, rows, columns].permute(0, 3, 1, 2)
    mirror = torch.rand(n, 1, 1, 1, device=device) < 0.5
    moved = torch.where(mirror, moved.flip(3), moved)
    centre = torch.randint(0, side, (2, n, 1, 1), device=device)
    far = (line[:, None] - centre[0]).abs() + 0 * line
    across = (line[None, :] - centre[1]).abs() + 0 * line[:, None]
    erased = ((far < 6) & (across < 6))[:, None]
    return torch.where(erased, torch.full_like(moved, 0.5), moved)


def mixed_loss(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of mixup, weights from Beta(.4, .4), with smoothed labels."""
    share = float(torch.distributions.Beta(0.4, 0.4).sample())
    other = torch.randperm(len(x), device=x.device)
    logits = model(share * x + (1 - share) * x[other]).float()
    parts = [F.cross_entropy(logits, t, label_smoothing=0.05) for t in (y, y[other])]
    return share * parts[0] + (1 - share) * parts[1]


def test_error(model: torch.nn.Module, folder: Path, device: torch.device) -> float:
    images, labels = load_cifar(folder, "test")
    wrong = 0
    with torch.no_grad():
        for start in range(0, len(images), 1000):
            x = as_tensor(images[start : start + 1000], device).permute(0, 3, 1, 2).float() / 255
            y = as_tensor(labels[start : start + 1000], device)
            wrong += int((model(x).argmax(1) != y).sum())
    return 100 * wrong / len(images)


if __name__ == "__main__":
    main()
