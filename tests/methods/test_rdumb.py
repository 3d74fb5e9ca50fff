"""RDumb: ETA's update sample by sample in float64, with the resets written out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.errors import ConfigError
from bombus.methods.eata import Eata
from bombus.methods.rdumb import Rdumb
from tiny import tree_hash

MIX = torch.tensor([[6.0, -3.0, 0.0, -4.0], [1.0, -4.0, 5.0, 0.0]], dtype=torch.float64)


class OneNorm(nn.Module):
    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.BatchNorm2d(2)
        self.mix = nn.Parameter(MIX.clone())
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x[:, :2]).mean((2, 3)) @ self.mix


def make_images(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(n, 3, 2, 2, generator=generator, dtype=torch.float64) for n in sizes]


def play_by_hand(batches: list[Tensor], reset_every: int, lr: float) -> tuple[Tensor, int, int]:
    """The affine (scale, then shift) after the batches, and what the filters left out."""
    e0, epsilon = 0.4 * math.log(4), 0.7
    theta = velocity = mean = None
    unreliable = redundant = 0
    for number, x in enumerate(batches):
        if theta is None or number % reset_every == 0:
            theta, velocity, mean = torch.tensor([1.0, 1.0, 0.0, 0.0]).double(), None, None
        theta.requires_grad_(True)
        x = x[:, :2]
        spread = (x.var((0, 2, 3), unbiased=False) + 1e-5).sqrt()
        normed = ((x - x.mean((0, 2, 3))[:, None, None]) / spread[:, None, None]).mean((2, 3))
        losses, learnt = [], []
        for feature in normed:
            p = ((feature * theta[:2] + theta[2:]) @ MIX).softmax(0)
            entropy = sum(-v * v.log() for v in p)
            if entropy.item() >= e0:
                unreliable += 1
                continue
            q = p.detach()
            if mean is not None and (q @ mean / q.norm() / mean.norm()).item() >= epsilon:
                redundant += 1
                continue
            losses.append(entropy * math.exp(e0 - entropy.item()))
            learnt.append(q)
        (gradient,) = torch.autograd.grad(sum(losses) / len(losses), theta)
        velocity = gradient if velocity is None else 0.9 * velocity + gradient
        theta = theta.detach() - lr * (gradient + 0.9 * velocity)
        latest = sum(learnt) / len(learnt)
        mean = latest if mean is None else 0.9 * mean + 0.1 * latest
    return theta, unreliable, redundant


def affine(adapter: Rdumb | Eata) -> Tensor:
    return torch.cat([p.detach() for p in adapter.parameters])


def make_rdumb(reset_every: int, norm: nn.Module | None = None) -> Rdumb:
    config = Rdumb.Config(optimizer="sgd", lr=0.05, redundancy=0.7, reset_every=reset_every)
    return Rdumb(OneNorm(norm), config)


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_update_by_hand(count: int) -> None:
    """Resets before batches 4 and 7; the last batch is short."""
    batches = make_images(16, 16, 16, 16, 16, 16, 16, 6)[:count]
    adapter = make_rdumb(reset_every=3)
    for x in batches:
        adapter(x)
        assert adapter.last.signals["kept"] > 0, "a batch had nothing to learn from: choose others"
    expected, unreliable, redundant = play_by_hand(batches, 3, lr=0.05)
    torch.testing.assert_close(affine(adapter), expected, rtol=0, atol=1e-10)
    assert unreliable > 0
    assert count == 1 or redundant > 0
    if count > 3:
        unbroken, _, _ = play_by_hand(batches, 1000, lr=0.05)
        assert (unbroken - expected).abs().max() > 1e-3


def test_is_eta_started_anew_every_n_batches() -> None:
    """Parameters, moments and running mean: to the bit what a new adapter has."""
    settings = {"lr": 0.05, "redundancy": 0.7}
    rdumb = Rdumb(OneNorm(), Rdumb.Config(reset_every=4, **settings))
    batches = make_images(*[16] * 10)
    for number, x in enumerate(batches):
        if number % 4 == 0:
            eta = Eata(OneNorm(), Eata.Config(fisher_weight=0.0, **settings), source=[])
        assert torch.equal(rdumb(x), eta(x))
        assert torch.equal(affine(rdumb), affine(eta))
        assert torch.equal(rdumb.mean, eta.mean)
        assert tree_hash(rdumb.optimizer.state_dict()) == tree_hash(eta.optimizer.state_dict())
        due = [{"event": "reset", "after": number}] if number in (4, 8) else []
        assert list(rdumb.last.events) == due


def test_a_batch_that_was_not_learnt_from_counts() -> None:
    adapter = make_rdumb(reset_every=2)
    x, y = make_images(16, 16)
    adapter(x)
    learnt = affine(adapter)
    adapter(torch.full_like(x, 0.5))  # normalises to nothing: no class is likelier than another
    assert torch.equal(affine(adapter), learnt)
    adapter(y)
    fresh = make_rdumb(reset_every=2)
    fresh(y)
    assert torch.equal(affine(adapter), affine(fresh))


def test_single_images_are_answered_and_not_counted() -> None:
    adapter = make_rdumb(reset_every=2)
    (x,) = make_images(16)
    for image in x[:3]:
        assert adapter(image[None]).isfinite().all()
        assert not adapter.last.events
    assert adapter.batches == 0
    for _ in range(3):
        adapter(x)
    assert adapter.last.events == ({"event": "reset", "after": 2},)


@pytest.mark.parametrize("norm", [None, nn.GroupNorm(1, 2)])
def test_resumes_exactly_across_resets(norm: nn.Module | None, tmp_path: Path) -> None:
    batches = make_images(16, 16, 16, 16, 16, 16, 5)
    adapter = make_rdumb(3, norm)
    logits, learnt = [], 0
    for k, x in enumerate(batches):
        adapter.save(tmp_path / str(k))
        logits.append(adapter(x))
        learnt += adapter.last.signals["kept"] > 0
    assert learnt > 4
    for k in range(len(batches)):
        again = bombus.load(tmp_path / str(k), OneNorm(norm))
        assert tree_hash([again(x) for x in batches[k:]]) == tree_hash(logits[k:])
        assert tree_hash(again.state_dict()) == tree_hash(adapter.state_dict())


def test_needs_no_source_and_has_etas_settings() -> None:
    assert Rdumb.needs == "none"
    for benchmark in ("cifar10-c", "cifar100-c", "imagenet-c"):
        for family in ("cnn", "vit"):
            ours = Rdumb.Config.for_benchmark(benchmark, family)
            eata = Eata.Config.for_benchmark(benchmark, family)
            for name in ("optimizer", "lr", "margin", "redundancy", "momentum"):
                assert getattr(ours, name) == getattr(eata, name)
            assert ours.reset_every == 1000
    with pytest.raises(ConfigError, match="reset_every=0, expected at least 1"):
        Rdumb.Config(reset_every=0)
