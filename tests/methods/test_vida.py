"""ViDA by hand, in float64: the source training, the doubt, gradients as formulas, the teacher."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.data.augment import VIEWS, cotta_view
from bombus.errors import ConfigError, DataError
from bombus.methods import vida
from bombus.methods.cotta import chosen_positions
from bombus.methods.vida import AdaptedLinear, Vida, adapter_scales, uncertainty
from bombus.metrics.passes import PassCounter
from tiny import make_tiny, noise_batches, tree_hash

WIDTH, CLASSES = 5, 4
LAYERS = ("blocks.0.attn.qkv", "blocks.0.attn.proj")


class Attention(nn.Module):
    """Two linear layers where an attention has them, with no mixing of tokens between."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH + 1)
        self.proj = nn.Linear(WIDTH + 1, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.proj(self.qkv(x).tanh())
        return mixed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.attn(x)
        return out


class Small(nn.Module):
    """Laid out as a vision transformer, of one token: small enough to write its gradient out."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(3, WIDTH)
        self.pos_embed = nn.Parameter(torch.zeros(WIDTH))
        self.blocks = nn.Sequential(Block())
        self.norm = nn.Identity()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
            self.head.weight *= 3

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x.mean((2, 3))) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens)))
        return logits


Numbers = dict[str, Tensor]


def numbers(model: nn.Module) -> Numbers:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def log_softmax(logits: Tensor) -> Tensor:
    shifted = logits - logits.max(1, keepdim=True).values
    return shifted - shifted.exp().sum(1, keepdim=True).log()


class ByHand:
    """The whole method on `Small`, begun from an adapter that has seen no source yet."""

    def __init__(self, fresh: Vida) -> None:
        self.config = fresh.config
        self.generator = torch.Generator()
        self.generator.set_state(fresh.generator.get_state())
        self.student = numbers(fresh.model)
        self.low = self.high = 1.0
        self.begin()

    def begin(self) -> None:
        self.teacher = {name: p.clone() for name, p in self.student.items()}
        self.start = {name: p.clone() for name, p in self.student.items()}
        self.first: Numbers = {}
        self.second: Numbers = {}
        self.steps = 0

    def matrix(self, p: Numbers, layer: str) -> Tensor:
        """What a layer and its adapters do to x together, but for the bias."""
        low = p[f"{layer}.low.up"] @ p[f"{layer}.low.down"]
        high = p[f"{layer}.high.up"] @ p[f"{layer}.high.down"]
        return p[f"{layer}.linear.weight"] + self.low * low + self.high * high

    def network(self, p: Numbers, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Logits, and what it took: colours, tokens, hidden and last features."""
        qkv, proj = LAYERS
        colours = x.mean((2, 3))
        tokens = colours @ p["patch_embed.weight"].T + p["patch_embed.bias"] + p["pos_embed"]
        hidden = torch.tanh(tokens @ self.matrix(p, qkv).T + p[f"{qkv}.linear.bias"])
        last = tokens + hidden @ self.matrix(p, proj).T
        return last @ p["head.weight"].T + p["head.bias"], colours, tokens, hidden, last

    def backward(self, p: Numbers, x: Tensor, d_logits: Tensor) -> Numbers:
        """The gradient of every parameter, given that of the logits."""
        qkv, proj = LAYERS
        _, colours, tokens, hidden, last = self.network(p, x)
        d_last = d_logits @ p["head.weight"]
        d_before_tanh = (d_last @ self.matrix(p, proj)) * (1 - hidden**2)
        d_tokens = d_last + d_before_tanh @ self.matrix(p, qkv)
        gradient = {
            "head.weight": d_logits.T @ last,
            "head.bias": d_logits.sum(0),
            f"{qkv}.linear.bias": d_before_tanh.sum(0),
            "patch_embed.weight": d_tokens.T @ colours,
            "patch_embed.bias": d_tokens.sum(0),
            "pos_embed": d_tokens.sum(0),
        }
        for layer, d_out, read in ((proj, d_last, hidden), (qkv, d_before_tanh, tokens)):
            gradient[f"{layer}.linear.weight"] = d_out.T @ read
            for adapter, scale in (("low", self.low), ("high", self.high)):
                up, down = p[f"{layer}.{adapter}.up"], p[f"{layer}.{adapter}.down"]
                gradient[f"{layer}.{adapter}.up"] = scale * d_out.T @ (read @ down.T)
                gradient[f"{layer}.{adapter}.down"] = scale * (d_out @ up).T @ read
        return gradient

    def descend(self, gradient: Numbers, kind: str, lr: float, adapter_lr: float) -> None:
        self.steps += 1
        for name, g in gradient.items():
            rate = adapter_lr if is_adapter(name) else lr
            zero = torch.zeros_like(g)
            if kind == "adam":
                self.first[name] = 0.9 * self.first.get(name, zero) + 0.1 * g
                self.second[name] = 0.999 * self.second.get(name, zero) + 0.001 * g * g
                root = (self.second[name] / (1 - 0.999**self.steps)).sqrt() + 1e-8
                step = self.first[name] / (1 - 0.9**self.steps) / root
            else:
                self.first[name] = g if self.steps == 1 else 0.9 * self.first[name] + g
                step = g + 0.9 * self.first[name]
            self.student[name] = self.student[name] - rate * step

    def learn_source(self, source: list[tuple[Tensor, Tensor]]) -> None:
        for x, y in source:
            s = log_softmax(self.network(self.student, x)[0]).exp()
            d_logits = (s - torch.eye(CLASSES, dtype=s.dtype)[y]) / len(x)
            gradient = self.backward(self.student, x, d_logits)
            theirs = {name: g for name, g in gradient.items() if is_adapter(name)}
            self.descend(theirs, "adam", math.nan, self.config.source_lr)
        self.begin()

    def doubt(self, x: Tensor) -> float:
        count = self.config.augmentations
        views = [
            self.network(self.teacher, cotta_view(x, self.generator, per_sample=False))[0]
            for _ in range(count)
        ]
        mean = sum(views) / count
        spread = sum((view - mean) ** 2 for view in views) / (count - 1)
        assert isinstance(spread, Tensor)
        return 0.1 * spread.sum().item() / (len(x) * CLASSES)

    def see(self, x: Tensor) -> Tensor:
        config = self.config
        u = self.doubt(x)
        sign = 1 if u >= config.threshold else -1
        self.low, self.high = 1 - sign * u, 1 if config.published_scales else 1 + sign * u
        taught = self.network(self.teacher, x)[0]
        log_s, log_t = log_softmax(self.network(self.student, x)[0]), log_softmax(taught)
        s, t = log_s.exp(), log_t.exp()
        d_logits = (s - t) / len(x)  # of -sum t log s
        if config.loss == "symmetric":  # and of -sum s log t
            surprise = -log_t - (s * -log_t).sum(1, keepdim=True)
            d_logits = (d_logits + s * surprise / len(x)) / 2
        gradient = self.backward(self.student, x, d_logits)
        if config.adapt == "adapters":
            gradient = {name: g for name, g in gradient.items() if is_adapter(name)}
        self.descend(gradient, config.optimizer, config.lr, config.adapter_lr)
        for name in self.teacher:
            m = config.adapter_momentum if is_adapter(name) else config.momentum
            self.teacher[name] = m * self.teacher[name] + (1 - m) * self.student[name]
        self.restore(list(gradient))
        return taught

    def restore(self, trained: list[str]) -> None:
        inside = [
            (name, i)
            for name in self.student
            if name in trained
            for i in range(self.student[name].numel())
        ]
        for position in chosen_positions(len(inside), self.config.restore, self.generator).tolist():
            name, i = inside[position]
            self.student[name].view(-1)[i] = self.start[name].view(-1)[i]


def is_adapter(name: str) -> bool:
    return ".low." in name or ".high." in name


def pictures(count: int, size: int = 6, seed: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    batches = [
        torch.rand(size, 3, 8, 8, generator=generator, dtype=torch.float64)
        * torch.rand(size, 3, 1, 1, generator=generator, dtype=torch.float64)
        for _ in range(count)
    ]
    batches[-1] = batches[-1][: size // 2]  # the last of a stream is shorter
    return batches


def labelled(count: int) -> list[tuple[Tensor, Tensor]]:
    return [
        (x, (torch.arange(len(x)) + i) % CLASSES) for i, x in enumerate(pictures(count, seed=9))
    ]


USUAL = {
    "lr": 0.03,
    "adapter_lr": 0.02,
    "source_lr": 0.05,
    "source_view": "none",
    "augmentations": 3,
    "high_rank": 3,
    "momentum": 0.9,
    "adapter_momentum": 0.7,
    "restore": 0.0,
    "seed": 7,
}


def small(*, source: Any = None, model: nn.Module | None = None, **settings: Any) -> Vida:
    return Vida(model or Small(), Vida.Config(**{**USUAL, **settings}), source=source)


def pair(**settings: Any) -> tuple[Vida, ByHand]:
    """An adapter with source-trained adapters, the same by hand, the students a little astray.

    A student that is its teacher has nothing to learn from cross-entropy but rounding errors, which
    Adam takes for gradients.
    """
    hand = ByHand(small(**settings))
    source = labelled(4)
    hand.learn_source(source)
    adapter = small(source=source, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in adapter.model.named_parameters():
            if p.requires_grad:
                astray = 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
                p.add_(astray)
                hand.student[name] = hand.student[name] + astray
    return adapter, hand


def assert_same(model: nn.Module, expected: Numbers) -> None:
    assert set(numbers(model)) == set(expected)
    for name, p in numbers(model).items():
        torch.testing.assert_close(p, expected[name], rtol=1e-7, atol=1e-7, msg=name)


def difference(one: Numbers, other: Numbers, *, adapters: bool) -> float:
    return max((one[k] - other[k]).abs().max().item() for k in one if is_adapter(k) == adapters)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("cross-entropy", {"threshold": 0.0}),
        ("cross-entropy", {"threshold": 100.0, "restore": 0.3}),
        ("symmetric", {"threshold": 0.0, "restore": 0.3, "published_scales": True}),
        ("symmetric", {"threshold": 100.0}),
        ("symmetric", {"threshold": 0.0, "restore": 0.3, "adapt": "adapters"}),
    ],
)
def test_update_by_hand(loss: str, settings: Any, optimizer: str, steps: int) -> None:
    adapter, hand = pair(loss=loss, optimizer=optimizer, **settings)
    before = numbers(adapter.teacher.model)
    for x in pictures(3)[:steps]:
        torch.testing.assert_close(adapter(x), hand.see(x), rtol=1e-7, atol=1e-7)
        assert_same(adapter.model, hand.student)
        assert_same(adapter.teacher.model, hand.teacher)
        assert abs(hand.low - 1) > 0.01, "the scales are of no account"
    after = numbers(adapter.teacher.model)
    assert difference(before, after, adapters=True) > 1e-3
    moved = difference(before, after, adapters=False)
    assert moved == 0 if adapter.config.adapt == "adapters" else moved > 1e-3


def test_source_training_by_hand() -> None:
    """Adam on the labels, for the adapters alone; the teacher starts as the trained student."""
    source = labelled(4)
    hand = ByHand(small())
    hand.learn_source(source)
    untrained, adapter = small(), small(source=source)
    assert_same(adapter.model, hand.student)
    assert_same(adapter.teacher.model, hand.student)
    before, after = numbers(untrained.model), numbers(adapter.model)
    assert difference(before, after, adapters=False) == 0
    assert difference(before, after, adapters=True) > 0.05


@pytest.mark.parametrize("adapt", ["all", "adapters"])
def test_source_training_lowers_the_loss_and_leaves_the_network(adapt: Any) -> None:
    model = make_tiny("vit")
    with torch.no_grad():
        model.head.weight *= 20  # an untrained head, frozen, would let nothing be learnt
    batches = [(x, (10 * x.mean((1, 2, 3))).long() % 5) for x in noise_batches(4)]
    count = 8 * 4 * 15
    config = Vida.Config(adapt=adapt, source_lr=1e-2, source_images=count, source_view="none")
    adapter = Vida(model, config, source=batches * 15)

    def loss(network: Any) -> float:
        with torch.no_grad():
            losses = [nn.functional.cross_entropy(network(x), y) for x, y in batches]
        return sum(value.item() for value in losses) / len(losses)

    assert loss(adapter.predict) < 0.5 * loss(model)
    source, now = numbers(model), numbers(adapter.model)
    for name, p in now.items():
        if not is_adapter(name):
            assert torch.equal(p, source[name.replace(".linear.", ".")]), name
        elif name.endswith(".up"):
            assert p.abs().sum() > 0, name


def test_source_images_bound_what_is_read() -> None:
    batches = labelled(4)  # 6, 6, 6 and 3 images
    two = small(source=batches[:2])
    bounded = small(source=batches, source_images=9)
    assert tree_hash(numbers(bounded.model)) == tree_hash(numbers(two.model))
    assert bounded.source_bytes == 2 * 6 * 3 * 8 * 8
    everything = small(source=batches)
    assert tree_hash(numbers(everything.model)) != tree_hash(numbers(two.model))


def test_progress_is_shown_for_as_many_batches_as_come(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def watched(items: Any, total: int, doing: str) -> Any:
        told.append((total, doing, seen := list(items)))
        return seen

    monkeypatch.setattr(vida, "with_progress", watched)
    for images, total in ((9, 2), (12, 2), (13, 3), (1000, 4)):
        small(source=labelled(4), source_images=images)
        assert told[-1][:2] == (total, "training the adapters")
        assert len(told[-1][2]) == total


def test_without_source_it_starts_as_the_source_model_and_says_so() -> None:
    x, later = noise_batches(2)
    model = make_tiny("vit")
    for settings, source in (({}, None), ({"source_images": 0}, [(x, torch.zeros(8).long())])):
        adapter = Vida(model, Vida.Config(augmentations=2, **settings), source=source)
        with torch.no_grad():
            assert torch.equal(adapter.predict(x), model(x))
            assert torch.equal(adapter(x), model(x)), "λ of nothing is nothing"
        assert [e["event"] for e in adapter.last.events] == ["source-free"]
        adapter(later)
        assert not adapter.last.events
        adapter.reset()
        adapter(x)
        assert adapter.last.events


def test_with_source_there_is_nothing_to_say() -> None:
    adapter = small(source=labelled(2))
    adapter(pictures(1)[0])
    assert not adapter.last.events


# The doubt and the weights of the adapters


def test_uncertainty_is_a_tenth_of_the_variance_between_views() -> None:
    logits = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = 0.0
    for n in range(3):
        for c in range(2):
            values = [logits[v, n, c].item() for v in range(4)]
            mean = sum(values) / 4
            total += sum((value - mean) ** 2 for value in values) / 3
    assert uncertainty(logits) == pytest.approx(0.1 * total / 6, rel=1e-12)
    assert uncertainty(logits[:1].expand(4, 3, 2)) == pytest.approx(0, abs=1e-30)


def test_scales_in_doubt_and_without() -> None:
    assert adapter_scales(0.25, threshold=0.2) == (0.75, 1.25)
    assert adapter_scales(0.25, threshold=0.25) == (0.75, 1.25), "the threshold is in doubt"
    assert adapter_scales(0.25, threshold=math.nextafter(0.25, 1)) == (1.25, 0.75)
    assert adapter_scales(0.0, threshold=0.2) == (1.0, 1.0)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 100.0])
def test_both_networks_get_the_scales(threshold: float, published: bool) -> None:
    adapter = small(source=labelled(4), threshold=threshold, published_scales=published)
    for x in pictures(2):
        adapter(x)
        u = adapter.last.signals["uncertainty"] * (1 if threshold == 0 else -1)
        expected = (1 - u, 1.0 if published else 1 + u)
        layers = [
            module
            for network in (adapter.model, adapter.teacher.model)
            for module in network.modules()
            if isinstance(module, AdaptedLinear)
        ]
        assert len(layers) == 4
        assert {(layer.low_scale, layer.high_scale) for layer in layers} == {expected}
        assert u != 0


def test_a_doubt_that_is_not_finite_leaves_the_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    x, other, _ = pictures(3)
    adapter = small(source=labelled(2))
    adapter(x)
    before = dict(adapter.scales)
    assert before["low"] != 1
    for bad in (math.nan, math.inf):
        monkeypatch.setattr(vida, "uncertainty", lambda _, bad=bad: bad)
        assert adapter(other).isfinite().all()
        assert adapter.last.events[0]["event"] == "scales kept"
        assert adapter.scales == before


def test_scales_are_saved_and_forgotten(tmp_path: Path) -> None:
    x, other, _ = pictures(3)
    adapter = small(source=labelled(4))
    fresh = adapter.predict(other)
    adapter(x)
    now = adapter.predict(other)
    adapter.save(tmp_path)
    resumed = Vida.load(tmp_path, Small())
    assert resumed.scales == adapter.scales
    assert adapter.scales["high"] != 1
    assert torch.equal(resumed.predict(other), now)
    resumed.reset()
    assert resumed.scales == {"low": 1.0, "high": 1.0}
    assert torch.equal(resumed.predict(other), fresh)


# Where the adapters are, and what returns to the start


def test_adapters_stand_beside_the_linear_layers_of_the_attention() -> None:
    adapter = Vida(make_tiny("vit"), Vida.Config(low_rank=2))
    found = {
        name: module
        for name, module in adapter.model.named_modules()
        if isinstance(module, AdaptedLinear)
    }
    assert set(found) == {f"blocks.{i}.attn.{part}" for i in range(6) for part in ("qkv", "proj")}
    for layer in found.values():
        inputs, outputs = layer.linear.in_features, layer.linear.out_features
        # 128 would be more than the width of 16.
        for adapters, rank in ((layer.low, 2), (layer.high, 16)):
            assert adapters.down.shape == (rank, inputs)
            assert adapters.up.shape == (outputs, rank)
            assert not adapters.up.any()
    for part, rank in (("low", 2), ("high", 16)):
        drawn = torch.cat(
            [getattr(layer, part).down.detach().flatten() for layer in found.values()]
        )
        assert drawn.std().item() == pytest.approx(1 / rank**2, rel=0.2)
        assert abs(drawn.mean().item()) < 5 / rank**2 / math.sqrt(len(drawn))


def test_the_draw_of_the_adapters_is_the_seeds() -> None:
    model = Small()
    before = torch.get_rng_state()
    one, same, other = (small(model=model, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before), "the generator of everybody was used"
    assert tree_hash(numbers(one.model)) == tree_hash(numbers(same.model))
    assert tree_hash(numbers(one.model)) != tree_hash(numbers(other.model))


def test_the_start_is_what_the_source_left() -> None:
    adapter = small(source=labelled(4), restore=1 - 1e-15, loss="symmetric")
    start = numbers(adapter.model)
    adapter(pictures(1)[0])
    assert tree_hash(numbers(adapter.model)) == tree_hash(start), "all of the student is back"
    assert difference(start, numbers(adapter.teacher.model), adapters=True) > 0


def test_source_images_may_be_changed_before_the_adapters_learn_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = labelled(3)
    darker = [(x / 2, y) for x, y in batches]
    monkeypatch.setitem(VIEWS, "mild", lambda x, _: x / 2)
    by_view = numbers(small(source=batches, source_view="mild").model)
    assert tree_hash(by_view) == tree_hash(numbers(small(source=darker).model))
    assert tree_hash(by_view) != tree_hash(numbers(small(source=batches).model))


def test_adapters_alone_are_trained_and_stored() -> None:
    adapter = small(source=labelled(2), adapt="adapters")
    assert all(p.requires_grad == is_adapter(k) for k, p in adapter.model.named_parameters())
    assert all(is_adapter(name) for name in adapter.state_dict()["model"])
    assert all(p.requires_grad for p in small().model.parameters())


def test_one_image_is_learnt_from() -> None:
    adapter = Vida(make_tiny("vit"), Vida.Config(augmentations=2, loss="symmetric"))
    before = numbers(adapter.model)
    adapter(noise_batches(1)[0][:1])
    assert difference(before, numbers(adapter.model), adapters=False) > 0


def test_forwards_and_backwards() -> None:
    adapter = Vida(make_tiny("vit"))
    counter = PassCounter(adapter.model)
    (x,) = noise_batches(1)
    with counter.counting():
        adapter(x)
    assert (counter.entered / len(x), counter.returned / len(x)) == (10 + 2, 1)


class Brittle(Small):
    """Finite logits whose gradient is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + (0 * logits).abs().sqrt()


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    adapter = small(model=Brittle(), restore=0.5, adapt="all")
    with torch.no_grad():  # as if it had moved before: a restore would be seen
        for p in adapter.model.parameters():
            p.add_(0.1)
    parts = ("model", "teacher", "optimizer")
    before = [tree_hash(adapter.state_dict()[k]) for k in parts]
    assert adapter(pictures(1)[0]).isfinite().all()
    assert adapter.last.events[-1]["event"] == "step dropped"
    assert [tree_hash(adapter.state_dict()[k]) for k in parts] == before


@pytest.mark.parametrize("loss", ["cross-entropy", "symmetric"])
def test_learns_in_bfloat16(loss: Any) -> None:
    labels = torch.arange(8) % 5
    with torch.autocast("cpu", torch.bfloat16):
        adapter = Vida(
            make_tiny("vit"),
            Vida.Config(augmentations=2, loss=loss),
            source=[(x, labels) for x in noise_batches(2)],
        )
        before = numbers(adapter.model)
        for x in noise_batches(3):
            logits = adapter(x)
            assert logits.isfinite().all()
            assert logits.dtype == torch.float32
    assert not adapter.last.events
    assert difference(before, numbers(adapter.model), adapters=True) > 0


# What is refused


class TorchAttention(Small):
    """With torch's own attention, whose projection is never called as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].attn = nn.MultiheadAttention(WIDTH, 1)


def test_networks_without_such_layers_are_refused() -> None:
    for kind in ("batchnorm", "groupnorm"):
        with pytest.raises(ConfigError, match=r"^vida works inside a vision transformer"):
            Vida(make_tiny(kind))
    with pytest.raises(ConfigError, match="inside modules named 'attn', and TorchAttention"):
        small(model=TorchAttention())


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 channels"):
        Vida(make_tiny("vit"), input=bombus.Input(channels=1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"restore": 1.0}, r"restore=1\.0"),
        ({"restore": -0.1}, r"restore=-0\.1"),
        ({"augmentations": 1}, "augmentations=1"),
        ({"low_rank": 0}, "low_rank=0"),
        ({"high_rank": -1}, "high_rank=-1"),
        ({"source_images": -1}, "source_images=-1"),
    ],
)
def test_impossible_settings_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        small(**settings)
    assert "\n" not in str(caught.value)


def test_source_data_that_cannot_be_learnt_from_is_refused() -> None:
    (x, y), *_ = labelled(2)
    for source, words in (
        ([], "no images"),
        ([x], "needs labelled source data"),
        ([(x, y[:-1])], r"6 images came with labels of shape \(5,\)"),
        ([(x, y + CLASSES)], "from 4 to 7; expected one label an image, 0 to 3"),
        ([(x, y - 1)], "from -1 to"),
        ([(x * math.nan, y)], "None of the 6 source images"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            small(source=source)
        assert "\n" not in str(caught.value)


def test_published_settings() -> None:
    facts = {}
    for benchmark in ("cifar10-c", "cifar100-c", "imagenet-c"):
        c = Vida.Config.for_benchmark(benchmark, "vit")
        facts[benchmark] = (c.optimizer, c.lr, c.adapter_lr, c.loss, c.threshold, c.restore)
        assert (c.low_rank, c.high_rank, c.augmentations, c.momentum) == (1, 128, 10, 0.999)
        assert c.adapter_momentum == (0.8 if benchmark == "imagenet-c" else 0.999)
        assert (c.adapt, c.published_scales) == ("all", False)
    assert facts == {
        "cifar10-c": ("adam", 1e-4, 1e-5, "cross-entropy", 0.05, 0.1),
        "cifar100-c": ("adam", 3e-4, 1e-6, "cross-entropy", 0.05, 0.1),
        "imagenet-c": ("sgd", 5e-7, 2e-7, "symmetric", 0.2, 0.0),
    }
