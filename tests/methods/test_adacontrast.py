"""AdaContrast's step, derived by hand: losses in loops, BatchNorm, SGD and both stores spelt out.

Float64 throughout, so the two derivations may differ by rounding alone: 1e-9.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bombus.data.augment import adacontrast_strong, adacontrast_weak, random_flip
from bombus.errors import ConfigError
from bombus.methods.adacontrast import AdaContrast, Ring, contrast, entropy_of_mean, unit, vote
from tiny import make_tiny, noise_batches, tree_hash

WIDTH, CLASSES = 6, 4


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.conv = nn.Conv2d(3, WIDTH, 3)
            self.norm = nn.BatchNorm2d(WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)
            nn.init.normal_(self.head.weight, std=2.0)  # so that predictions differ
            nn.init.uniform_(self.norm.weight, 0.5, 1.5)
            nn.init.normal_(self.norm.running_mean, std=0.1)
            nn.init.uniform_(self.norm.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.conv(x)).relu().mean((2, 3)))
        return logits


def settings(**changed: object) -> AdaContrast.Config:
    """Larger steps and smaller stores than published, so that five batches show everything."""
    small = {
        "lr": 0.02,
        "weight_decay": 0.03,
        "momentum": 0.8,
        "queue_size": 10,
        "bank_size": 12,
        "neighbours": 3,
        "vote_after": 16,
        "weak_view": "shift",
        "seed": 5,
    }
    return AdaContrast.Config(**{**small, **changed})


def batches(count: int = 5, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The last one of every five is short."""
    full = noise_batches(count, size=8, side=10)
    return [(x[:5] if i % 5 == 4 else x).to(dtype) for i, x in enumerate(full)]


def planted(size: int = 10) -> tuple[Tensor, Tensor]:
    """A queue that a test knows: features on the sphere, labels."""
    generator = torch.Generator().manual_seed(8)
    features = torch.randn(size, WIDTH, generator=generator, dtype=torch.float64)
    features /= features.square().sum(1, keepdim=True).sqrt()
    return features, torch.randint(CLASSES, (size,), generator=generator)


class ByHand:
    """The whole method once more; the network is written out, its gradient is autograd's."""

    def __init__(self, model: nn.Module, config: AdaContrast.Config) -> None:
        self.config = config
        self.fast = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.slow = {name: p.clone() for name, p in self.fast.items()}
        self.velocity: dict[str, Tensor] = {}
        self.mean = model.get_buffer("norm.running_mean").clone()
        self.var = model.get_buffer("norm.running_var").clone()
        features, labels = planted(config.queue_size)
        self.queue = deque(zip(features, labels.tolist(), strict=True), maxlen=config.queue_size)
        self.bank: deque[tuple[Tensor, Tensor]] = deque(maxlen=config.bank_size)
        self.seen = 0
        self.generator = torch.Generator().manual_seed(config.seed)

    def network(
        self, theta: dict[str, Tensor], x: Tensor, *, running: bool = False, follow: bool = False
    ) -> tuple[Tensor, Tensor]:
        h = F.conv2d(x, theta["conv.weight"], theta["conv.bias"])
        mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), unbiased=False)
        if follow:
            values = h.numel() / WIDTH
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.var = 0.9 * self.var + 0.1 * var.detach() * values / (values - 1)
        if running:
            mean, var = self.mean, self.var
        h = (h - mean[:, None, None]) / (var + 1e-5).sqrt()[:, None, None]
        h = h * theta["norm.weight"][:, None, None] + theta["norm.bias"][:, None, None]
        features = h.clamp_min(0).mean((2, 3))
        return features @ theta["head.weight"].T + theta["head.bias"], features

    def pseudo_labels(self, logits: Tensor, features: Tensor) -> list[int]:
        if self.seen < self.config.vote_after:
            return [max(range(CLASSES), key=row.__getitem__) for row in logits.tolist()]
        labels = []
        for f in features:
            cosine = [float(f @ g / (f.norm() * g.norm())) for g, _ in self.bank]
            ranked = sorted(range(len(cosine)), key=lambda j: -cosine[j])
            near = [self.bank[j][1].tolist() for j in ranked[: self.config.neighbours]]
            votes = [sum(p[c] for p in near) for c in range(CLASSES)]
            labels.append(votes.index(max(votes)))
        return labels

    def loss(self, logits: Tensor, features: Tensor, keys: Tensor, labels: list[int]) -> Tensor:
        config, n = self.config, len(labels)
        total = torch.zeros((), dtype=torch.float64)
        mean = [torch.zeros((), dtype=torch.float64)] * CLASSES
        for i, label in enumerate(labels):
            exps = [logits[i, c].exp() for c in range(CLASSES)]
            p = [e / sum(exps) for e in exps]
            mean = [m + pc / n for m, pc in zip(mean, p, strict=True)]
            total = total - config.classification_weight * p[label].log() / n
            q = features[i] / features[i].norm()
            positive = (q @ keys[i] / keys[i].norm() / config.temperature).exp()
            negative = sum(
                (q @ g / config.temperature).exp() for g, other in self.queue if other != label
            )
            nce = -(positive / (positive + negative)).log()
            total = total + config.contrast_weight * nce / n
        return total + config.diversity_weight * sum(m * m.log() for m in mean)

    def __call__(self, x: Tensor) -> Tensor:
        config = self.config
        weak = adacontrast_weak(x, self.generator)
        strong = [adacontrast_strong(x, self.generator) for _ in range(2)]
        fast = {name: p.requires_grad_() for name, p in self.fast.items()}
        weak_logits, weak_features = self.network(fast, weak, follow=True)
        labels = self.pseudo_labels(weak_logits.detach(), weak_features.detach())
        logits, features = self.network(fast, strong[0], follow=True)
        keep = config.momentum
        self.slow = {k: keep * p + (1 - keep) * fast[k].detach() for k, p in self.slow.items()}
        _, keys = self.network(self.slow, strong[1])
        loss = self.loss(logits, features, keys, labels)
        gradients = torch.autograd.grad(loss, list(fast.values()))
        for (name, p), g in zip(fast.items(), gradients, strict=True):
            decayed = g + config.weight_decay * p.detach()
            v = decayed if name not in self.velocity else 0.9 * self.velocity[name] + decayed
            self.velocity[name] = v
            self.fast[name] = p.detach() - config.lr * (decayed + 0.9 * v)
        self.queue.extend((k / k.norm(), y) for k, y in zip(keys, labels, strict=True))
        slow_logits, slow_features = self.network(self.slow, weak)
        self.bank.extend(zip(slow_features, slow_logits.softmax(1), strict=True))
        self.seen += len(x)
        return self.network(self.fast, x, running=config.predict_with == "running")[0]


def make(config: AdaContrast.Config | None = None, model: nn.Module | None = None) -> AdaContrast:
    """An adapter whose queue is planted where it would begin at random."""
    adapter = AdaContrast((model or Small()).double(), config or settings())
    adapter.queue.push(*planted(adapter.config.queue_size))
    return adapter


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("predict_with", ["running", "batch"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_update_by_hand(steps: int, predict_with: str) -> None:
    config = settings(predict_with=predict_with)
    adapter = make(config)
    hand = ByHand(adapter.model, config)
    relabelled = 0.0
    for x in batches(steps):
        close(adapter(x), hand(x))
        relabelled += adapter.last.signals.get("relabelled", 0)
    for name, p in adapter.model.named_parameters():
        close(p, hand.fast[name])
    for name, p in adapter.teacher.model.named_parameters():
        close(p, hand.slow[name])
    close(adapter.model.get_buffer("norm.running_mean"), hand.mean)
    close(adapter.model.get_buffer("norm.running_var"), hand.var)
    assert (relabelled > 0) == (steps > 1), "the votes must have changed something"


@pytest.mark.parametrize("part", ["classification", "contrast", "diversity"])
def test_weight_of_each_part(part: str) -> None:
    weights = {f"{name}_weight": 0.0 for name in ("classification", "contrast", "diversity")}
    config = settings(**{**weights, f"{part}_weight": 0.7})
    adapter = make(config)
    hand = ByHand(adapter.model, config)
    for x in batches(2):
        adapter(x), hand(x)
    for name, p in adapter.model.named_parameters():
        close(p, hand.fast[name])


def test_published_settings() -> None:
    for benchmark in ("cifar10-c", "cifar100-c", "imagenet-c"):
        config = AdaContrast.Config.for_benchmark(benchmark)
        assert (config.optimizer, config.lr, config.weight_decay) == ("sgd", 2e-4, 1e-4)
        assert (config.momentum, config.temperature) == (0.999, 0.07)
        assert (config.queue_size, config.bank_size) == (16384, 16384)
        assert (config.neighbours, config.vote_after) == (10, 1024)


# What it predicts with


def test_predicts_after_the_update() -> None:
    adapter = make()
    x = batches(1)[0]
    before = adapter.predict(x)
    after = adapter(x)
    assert not torch.equal(after, before)
    assert torch.equal(adapter.predict(x), after)


def test_predicts_with_running_statistics_which_follow_the_stream() -> None:
    adapter = make(settings(lr=0.0))
    x = batches(1)[0]
    start = adapter.model.get_buffer("norm.running_mean").clone()
    adapter(x)
    assert not torch.equal(adapter.model.get_buffer("norm.running_mean"), start)
    together = adapter.predict(x)
    apart = torch.cat([adapter.predict(x[i : i + 1]) for i in range(len(x))])
    close(together, apart)  # an image's answer does not depend on its batch


def test_predicting_by_batch_leaves_the_running_statistics_alone() -> None:
    adapter = make(settings(predict_with="batch"))
    x = batches(1)[0]
    adapter(x)
    before = tree_hash(adapter.state_dict())
    first = adapter.predict(x)
    assert tree_hash(adapter.state_dict()) == before
    assert not torch.allclose(first[:3], adapter.predict(x[:3]))  # other company, other statistics
    norm = adapter.model.get_submodule("norm")
    assert not norm.training
    assert norm.track_running_stats


def test_a_single_image_is_answered_with_the_running_statistics_and_not_learnt_from() -> None:
    for predict_with in ("running", "batch"):
        adapter = make(settings(predict_with=predict_with))
        adapter(batches(1)[0])
        before = tree_hash(adapter.state_dict())
        x = batches(2)[1][:1]
        logits = adapter(x)
        assert tree_hash(adapter.state_dict()) == before
        plain = Small().double()
        plain.load_state_dict(adapter.model.state_dict())
        close(logits, plain(x))


def test_a_single_image_is_learnt_from_without_batchnorm() -> None:
    adapter = AdaContrast(make_tiny("groupnorm"), settings())
    before = adapter.model.get_parameter("stem.weight").detach().clone()
    adapter(noise_batches(1)[0][:1])
    assert not torch.equal(adapter.model.get_parameter("stem.weight"), before)
    assert adapter.seen == 1


def test_the_momentum_network_reads_no_running_statistics() -> None:
    plain, spoilt = make(), make()
    for buffer in spoilt.teacher.model.buffers():
        buffer.fill_(9)
    for x in batches(3):
        assert torch.equal(plain(x), spoilt(x))


def test_dropout_stays_off() -> None:
    model = Small()
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    one, two = make(model=model), make()
    for x in batches(2):
        assert torch.equal(one(x), two(x))


# The stores


def test_the_queue_begins_with_random_directions_and_labels() -> None:
    size = 4000
    adapter = AdaContrast(Small().double(), settings(queue_size=size))
    assert not len(adapter.queue)  # nothing is known of the features before the first batch
    adapter(batches(1)[0])
    features, labels = adapter.queue.features[8:], adapter.queue.answers[8:]
    assert len(adapter.queue) == size
    torch.testing.assert_close(features.norm(dim=1), torch.ones_like(features[:, 0]))
    assert features.mean(0).abs().max() < 0.05  # no direction is preferred
    share = Counter(labels.tolist())
    assert all(abs(share[c] / len(labels) - 1 / CLASSES) < 0.03 for c in range(CLASSES))
    other = AdaContrast(Small().double(), settings(queue_size=size, seed=6))
    other(batches(1)[0])
    assert not torch.equal(other.queue.features[8:], features)


def test_own_keys_are_no_negatives() -> None:
    """The queue of a first batch is what was planted: keys and labels enter after the loss."""
    features, _ = planted()
    for label in range(CLASSES):
        adapter = AdaContrast(Small().double(), settings())
        adapter.queue.push(features, torch.full((10,), label))
        adapter(batches(1)[0])
        got = adapter.queue.answers[:8].tolist()
        assert adapter.queue.answers[8:].tolist() == [label] * 2, "the oldest eight were replaced"
        # Entries of this very label are left out; all others count against every one of them.
        queries = sum(y != label for y in got)
        assert (adapter.last.signals["contrast"] > 0) == (queries > 0)


def test_one_class_only() -> None:
    """All is one class: nothing to contrast with, yet a finite step on the other terms."""
    model = Small()
    nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 3.0, 0.0, 0.0])
    adapter = AdaContrast(model.double(), settings())
    adapter.queue.push(planted()[0], torch.ones(10, dtype=torch.long))
    before = adapter.model.get_parameter("head.bias").detach().clone()
    logits = adapter(batches(1)[0])
    assert adapter.last.signals["contrast"] == pytest.approx(0, abs=1e-12)
    assert not adapter.last.events
    assert logits.isfinite().all()
    assert not torch.equal(adapter.model.get_parameter("head.bias"), before)


def test_votes_begin_after_enough_samples_and_then_for_good() -> None:
    adapter = make(settings(vote_after=17))
    voted = []
    for x in batches(5):
        adapter(x)
        voted.append("relabelled" in adapter.last.signals)
    assert voted == [False, False, False, True, True]  # 8, 16, 24 samples seen
    assert adapter.seen == 37
    assert len(adapter.bank) == 12


def test_votes_from_the_start_need_a_bank() -> None:
    adapter = make(settings(vote_after=0, neighbours=100))
    for x in batches(3):
        assert adapter(x).isfinite().all()


def test_ring_keeps_the_newest_in_bounds() -> None:
    ring = Ring(5)
    expected: deque[int] = deque(maxlen=5)
    number = 0
    for size in (2, 2, 3, 1, 7, 4):
        values = torch.arange(number, number + size)
        ring.push(values[:, None].float(), values)
        expected.extend(values.tolist())
        number += size
        assert sorted(ring.answers.tolist()) == list(expected)
        assert torch.equal(ring.features[:, 0].long(), ring.answers)
        copy = Ring(5)
        copy.load_state_dict(ring.state_dict())
        for r in (ring, copy):  # both go on at the same place
            r.push(torch.tensor([[float(number)]]), torch.tensor([number]))
        expected.append(number)
        assert torch.equal(copy.answers, ring.answers)
        number += 1


def test_resumes_from_every_batch(tmp_path: Path) -> None:
    """Across the beginning of the votes and the stores' first overflow."""
    stream = batches(8, torch.float32)
    adapter = AdaContrast(Small(), settings())
    logits = []
    for k, x in enumerate(stream):
        adapter.save(tmp_path / str(k))
        logits.append(adapter(x))
    end = tree_hash(adapter.state_dict())
    for k in range(len(stream)):
        resumed = AdaContrast.load(tmp_path / str(k), Small())
        for x, y in zip(stream[k:], logits[k:], strict=True):
            assert torch.equal(resumed(x), y)
        assert tree_hash(resumed.state_dict()) == end


def test_a_step_that_is_not_finite_leaves_nothing_behind() -> None:
    adapter = AdaContrast(Small(), settings())
    stream = batches(3, torch.float32)
    adapter(stream[0])
    with torch.no_grad():
        adapter.model.get_parameter("conv.weight")[0] = math.inf  # as after a memory fault
    kept = ("model", "optimizer", "queue", "bank", "seen")
    before = {name: tree_hash(adapter.state_dict()[name]) for name in kept}
    adapter(stream[1])
    assert [e["event"] for e in adapter.last.events] == ["step dropped"]
    assert {name: tree_hash(adapter.state_dict()[name]) for name in kept} == before


# Views and maths


def test_weak_view_can_be_the_mirror_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = batches(1)[0]
    seen: list[Tensor] = []
    original = AdaContrast._pseudo_labels

    def watch(self: AdaContrast, weak: Tensor) -> Tensor:
        seen.append(weak)
        return original(self, weak)

    monkeypatch.setattr(AdaContrast, "_pseudo_labels", watch)
    make(settings())(x)
    make(settings(weak_view="mirror"))(x)
    assert torch.equal(seen[0], adacontrast_weak(x, torch.Generator().manual_seed(5)))
    assert torch.equal(seen[1], random_flip(x, torch.Generator().manual_seed(5)))


def test_vote_by_loops() -> None:
    generator = torch.Generator().manual_seed(3)
    features = unit(torch.randn(7, 4, generator=generator, dtype=torch.float64))
    bank = unit(torch.randn(30, 4, generator=generator, dtype=torch.float64))
    p = torch.rand(30, 3, generator=generator, dtype=torch.float64)
    got = vote(features, bank, p, 10)
    for i in range(7):
        angle = [math.acos(float(features[i] @ bank[j])) for j in range(30)]
        near = sorted(range(30), key=angle.__getitem__)[:10]
        for c in range(3):
            assert float(got[i, c]) == pytest.approx(sum(float(p[j, c]) for j in near) / 10)


def test_entropy_of_mean_is_of_the_mean_not_the_mean_of_entropies() -> None:
    sure = 50 * torch.eye(4, dtype=torch.float64)
    assert float(entropy_of_mean(sure)) == pytest.approx(math.log(4))
    assert float(entropy_of_mean(sure[:1].repeat(4, 1))) == pytest.approx(0, abs=1e-12)
    hopeless = torch.tensor([[0.0, -1e4], [0.0, -1e4]], requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy_of_mean(hopeless), hopeless)
    assert gradient.isfinite().all()  # a class nobody predicts


def test_under_autocast_stores_and_cosines_are_single() -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, others = (unit(torch.randn(n, 32, generator=generator)) for n in (8, 8, 50))
    labels, other_labels = torch.arange(8) % 4, torch.arange(50) % 4
    plain = contrast(q, k, labels, others, other_labels, 0.07)
    p = torch.rand(50, 4, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(contrast(q, k, labels, others, other_labels, 0.07), plain)
        voted = vote(q, others, p, 5)
    assert torch.equal(voted, vote(q, others, p, 5))
    adapter = AdaContrast(Small(), settings())
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        for x in batches(4, torch.float32):
            assert adapter(x).isfinite().all()
    for ring in (adapter.queue, adapter.bank):
        assert ring.features.dtype == torch.float32
    assert not adapter.last.events


@pytest.mark.parametrize(
    "wrong",
    [{"queue_size": 0}, {"bank_size": 0}, {"neighbours": 0}, {"temperature": 0}, {"momentum": 2}],
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AdaContrast.Config(**wrong)
