"""DPLOT a second way: the network as formulas, gradients by differences, Adam written out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.errors import ConfigError
from bombus.methods.dplot import Dplot
from tiny import make_tiny, noise_batches, tree_hash

Weights = dict[str, Tensor]


class Small(nn.Module):
    """Two levels and a classifier, smooth, so that differences give exact gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3), nn.Tanh())
        self.layer2 = nn.Sequential(nn.Conv2d(3, 4, 2, bias=False), nn.BatchNorm2d(4), nn.Tanh())
        self.fc = nn.Linear(4, 3)
        self.num_classes = 3

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer2(self.layer1(x)).mean((2, 3)))
        return logits


def small() -> Small:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Small().double().eval()


def images(count: int, size: int = 5) -> list[Tensor]:
    return [x.double() for x in noise_batches(count, size=size, side=4)]


# --- the second derivation -------------------------------------------------------------------


def normalise(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    mean = h.mean((0, 2, 3), keepdim=True)
    variance = ((h - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return (h - mean) / (variance + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]


def network(w: Weights, x: Tensor) -> Tensor:
    h = torch.einsum("oi,nihw->nohw", w["layer1.0.weight"][:, :, 0, 0], x)
    h = normalise(h, w["layer1.1.weight"], w["layer1.1.bias"]).tanh()
    kernel = w["layer2.0.weight"]
    taps = [
        torch.einsum("oi,nihw->nohw", kernel[:, :, a, b], h[:, :, a : 3 + a, b : 3 + b])
        for a in (0, 1)
        for b in (0, 1)
    ]
    h = normalise(sum(taps[1:], taps[0]), w["layer2.1.weight"], w["layer2.1.bias"]).tanh()
    return h.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]


def cross(p: Tensor, q: Tensor) -> float:
    """Mean over samples of -sum p log q, of logits, one sample at a time."""
    total = 0.0
    for row_p, row_q in zip(p, q, strict=True):
        a, b = row_p.exp() / row_p.exp().sum(), row_q.exp() / row_q.exp().sum()
        total -= float((a * b.log()).sum())
    return total / len(p)


def apart(p: Tensor, q: Tensor) -> float:
    return cross(p, q) / 2 + cross(q, p) / 2


def differences(loss: Callable[[Weights], float], w: Weights, names: list[str]) -> Weights:
    gradients = {}
    for name in names:
        gradients[name] = torch.zeros_like(w[name])
        for i in range(w[name].numel()):
            ends = []
            for h in (1e-5, -1e-5):
                moved = {**w, name: w[name].clone()}
                moved[name].view(-1)[i] += h
                ends.append(loss(moved))
            gradients[name].view(-1)[i] = (ends[0] - ends[1]) / 2e-5
    return gradients


class HandAdam:
    def __init__(self) -> None:
        self.m: Weights = {}
        self.v: Weights = {}
        self.t = 0

    def step(self, w: Weights, gradients: Weights, lr: float) -> None:
        self.t += 1
        for name, g in gradients.items():
            self.m[name] = 0.9 * self.m.get(name, torch.zeros_like(g)) + 0.1 * g
            self.v[name] = 0.999 * self.v.get(name, torch.zeros_like(g)) + 0.001 * g * g
            unbiased = (self.v[name] / (1 - 0.999**self.t)).sqrt() + 1e-8
            w[name] = w[name] - lr * self.m[name] / (1 - 0.9**self.t) / unbiased


def follow(teacher: Weights, student: Weights, momentum: float) -> None:
    for name in teacher:
        teacher[name] = momentum * teacher[name] + (1 - momentum) * student[name]


def no_warm_up(**settings: Any) -> Dplot:
    config = Dplot.Config(warmup_images=0, **settings)
    return Dplot(small(), config, source=images(1))


def assert_same(network: nn.Module, w: Weights) -> None:
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.detach(), w[name], rtol=0, atol=2e-7, msg=name)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("warmup", [0, 15])  # 15 images: three batches
def test_update_by_hand(steps: int, keeps: bool, warmup: int) -> None:
    student = {name: p.detach().clone() for name, p in small().named_parameters()}
    start, teacher = dict(student), dict(student)
    everything = list(student)
    source = images(4)[::-1]

    adam = HandAdam()
    for i, x in enumerate(source[:3] if warmup else [], start=1):
        target = network(teacher, x)
        g = differences(lambda w, x=x, t=target: apart(network(w, x), t), student, everything)
        adam.step(student, g, lr=0.02 * i / 3)
        follow(teacher, student, 0.9)
    if not keeps:
        student = dict(start)

    adapter = Dplot(
        small(),
        Dplot.Config(
            entropy_lr=0.01,
            pseudo_label_lr=0.003,
            momentum=0.9,
            warmup_images=warmup,
            warmup_lr=0.02,
            student_keeps_warmup=keeps,
        ),
        source=source,
    )
    assert_same(adapter.model, student)
    assert_same(adapter.teacher.model, teacher)

    blocks, rest = HandAdam(), HandAdam()
    selected = ["layer1.0.weight", "layer1.1.weight", "layer1.1.bias"]
    for x in images(steps):
        pair = torch.cat([x, x[..., [3, 2, 1, 0]]])
        s, t = network(student, pair), network(teacher, pair)
        answers = adapter(x)
        torch.testing.assert_close(answers, (s[:5] + s[5:] + t[:5] + t[5:]) / 4, rtol=0, atol=1e-6)
        target = (t[:5] + t[5:]) / 2

        def entropy(w: Weights, pair: Tensor = pair) -> float:
            logits = network(w, pair)
            return cross(logits, logits)

        def to_teacher(w: Weights, pair: Tensor = pair, target: Tensor = target) -> float:
            logits = network(w, pair)
            return apart(logits[:5], target) + apart(logits[5:], target)

        first = differences(entropy, student, selected)
        second = differences(to_teacher, student, everything)  # at the weights before both steps
        blocks.step(student, first, lr=0.01)
        rest.step(student, second, lr=0.003)
        follow(teacher, student, 0.9)
    assert_same(adapter.model, student)
    assert_same(adapter.teacher.model, teacher)


# --- decisions -------------------------------------------------------------------------------


def test_the_defaults_are_the_references() -> None:
    config = Dplot.Config()
    assert (config.entropy_lr, config.pseudo_label_lr, config.warmup_lr) == (1e-3, 1e-4, 1e-3)
    assert (config.momentum, config.warmup_images) == (0.999, 50_000)
    assert config.student_keeps_warmup


def test_the_second_gradient_is_not_taken_after_the_first_step() -> None:
    """With a huge first step, a second gradient taken after it would be another one."""
    adapter = no_warm_up(entropy_lr=1e-12, pseudo_label_lr=0.01)
    other = no_warm_up(entropy_lr=0.5, pseudo_label_lr=0.01)
    (x,) = images(1)
    adapter(x), other(x)
    still, moved = (dict(a.model.named_parameters()) for a in (adapter, other))
    assert not torch.allclose(still["layer1.0.weight"], moved["layer1.0.weight"], atol=0.1)
    for name in ("layer2.0.weight", "fc.weight", "fc.bias"):
        torch.testing.assert_close(still[name], moved[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("keeps", [True, False])
def test_who_starts_warmed(keeps: bool) -> None:
    config = Dplot.Config(warmup_images=15, warmup_lr=0.05, student_keeps_warmup=keeps)
    adapter = Dplot(small(), config, source=images(3))
    source = small().fc.weight
    assert torch.equal(adapter.model.get_submodule("fc").weight, source) != keeps
    assert not torch.equal(adapter.teacher.model.get_submodule("fc").weight, source)
    adapter(images(1)[0])
    adapter.reset()  # back to after the warm-up, not to before it
    assert torch.equal(adapter.model.get_submodule("fc").weight, source) != keeps


def test_the_warm_up_leaves_no_moments_behind() -> None:
    adapter = Dplot(small(), Dplot.Config(warmup_images=15), source=images(3))
    assert not adapter.entropy_optimizer.state_dict()["state"]
    assert not adapter.pseudo_label_optimizer.state_dict()["state"]


@pytest.mark.parametrize(
    ("kind", "selected"),
    [
        ("batchnorm", ("block1.",)),
        ("groupnorm", ("layer1.",)),
        ("vit", ("blocks.0.", "blocks.1.", "blocks.2.")),
    ],
)
def test_blocks_left_out_are_the_first(kind: str, selected: tuple[str, ...]) -> None:
    adapter = Dplot(make_tiny(kind), Dplot.Config(warmup_images=0), source=noise_batches(1))
    chosen = {id(p) for p in adapter.selected}
    for name, p in adapter.model.named_parameters():
        assert (id(p) in chosen) == name.startswith(selected), name


def test_named_blocks() -> None:
    adapter = no_warm_up(blocks=("layer2",), entropy_lr=0.01, pseudo_label_lr=0.0)
    before = {name: p.detach().clone() for name, p in adapter.model.named_parameters()}
    adapter(images(1)[0])
    for name, p in adapter.model.named_parameters():
        assert torch.equal(p, before[name]) != name.startswith("layer2."), name


@pytest.mark.parametrize(("block", "words"), [("layer9", "layer1"), ("layer1.2", "no parameters")])
def test_wrong_blocks(block: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        no_warm_up(blocks=(block,))


# --- edges -----------------------------------------------------------------------------------


def test_one_image_is_answered_with_the_source_statistics_and_teaches_nothing() -> None:
    model = make_tiny("batchnorm")
    adapter = Dplot(model, Dplot.Config(warmup_images=0), source=noise_batches(1))
    before = tree_hash(adapter.state_dict())
    (x,) = noise_batches(1, size=1)
    with torch.no_grad():
        expected = (model(x) + model(x.flip(-1))) / 2
    torch.testing.assert_close(adapter(x), expected)
    torch.testing.assert_close(adapter.predict(x), expected)
    assert tree_hash(adapter.state_dict()) == before


def test_one_image_trains_a_network_without_batch_norm() -> None:
    model = make_tiny("groupnorm")
    adapter = Dplot(model, Dplot.Config(warmup_images=0), source=noise_batches(1))
    before = tree_hash(adapter.state_dict())
    adapter(noise_batches(1, size=1)[0])
    assert tree_hash(adapter.state_dict()) != before


def test_predicts_before_it_updates_and_knows_a_mirror_image() -> None:
    adapter = no_warm_up(entropy_lr=0.05)
    first, second = images(2)
    adapter(first)
    before = adapter.predict(second)
    assert torch.equal(adapter.predict(second.flip(-1)).argmax(1), before.argmax(1))
    torch.testing.assert_close(adapter.predict(second.flip(-1)), before)
    assert torch.equal(adapter(second), before)
    assert not torch.equal(adapter.predict(second), before)


def test_alike_images_and_short_batches_stay_finite() -> None:
    adapter = no_warm_up(entropy_lr=0.05)
    (x,) = images(1)
    for batch in (x, x[:1].expand(5, -1, -1, -1), torch.zeros_like(x), x[:2], x):
        assert adapter(batch).isfinite().all()
    assert all(p.isfinite().all() for p in adapter.model.parameters())


def test_steps_that_are_not_finite_are_dropped() -> None:
    model = small()
    with torch.no_grad():
        model.fc.weight.fill_(1e308)
    adapter = Dplot(model, Dplot.Config(warmup_images=0), source=images(1))
    with torch.no_grad():
        adapter.teacher.model.get_submodule("fc").bias.add_(1)  # it has somewhere to go, and stays
    before = tree_hash(adapter.state_dict())
    adapter(images(1)[0])
    dropped = [(e["event"], e["stage"]) for e in adapter.last.events]
    assert dropped == [("step dropped", "entropy"), ("step dropped", "pseudo-label")]
    assert tree_hash(adapter.state_dict()) == before


def test_one_stage_may_be_dropped_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = no_warm_up(entropy_lr=0.05, pseudo_label_lr=0.01)
    monkeypatch.setattr(
        "bombus.methods.dplot.softmax_entropy", lambda logits: logits.sum(1) * float("nan")
    )
    before = {name: p.detach().clone() for name, p in adapter.model.named_parameters()}
    teacher = {name: p.clone() for name, p in adapter.teacher.model.named_parameters()}
    adapter(images(1)[0])
    assert [e["stage"] for e in adapter.last.events] == ["entropy"]
    for name, p in adapter.model.named_parameters():
        assert p.isfinite().all()
        assert not torch.equal(p, before[name])
        assert not torch.equal(dict(adapter.teacher.model.named_parameters())[name], teacher[name])


def test_resumes_in_mid_stream(tmp_path: Path) -> None:
    source, batches = noise_batches(3), noise_batches(6)
    adapter = Dplot(make_tiny("batchnorm"), Dplot.Config(warmup_images=24), source=source)
    for x in batches[:3]:
        adapter(x)
    adapter.save(tmp_path)
    resumed = bombus.load(tmp_path, make_tiny("batchnorm"))
    for x in batches[3:]:
        assert torch.equal(resumed(x), adapter(x))
    assert tree_hash(resumed.state_dict()) == tree_hash(adapter.state_dict())


def test_half_precision_trains() -> None:
    adapter = Dplot(make_tiny("batchnorm"), Dplot.Config(warmup_images=0), source=noise_batches(1))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        logits = [adapter(x) for x in noise_batches(3)]
    assert all(y.isfinite().all() for y in logits)
    assert not adapter.last.events
