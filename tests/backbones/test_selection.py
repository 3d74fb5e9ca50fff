"""Which blocks may be trained: the candidates, one score derived a second way, and the command."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from torch import Tensor, nn

from bombus.backbones import create, selection
from bombus.backbones.selection import BlockScore, candidate_blocks, score_blocks
from bombus.backbones.weights import save_weights
from bombus.cli.blocks import blocks as blocks_command
from bombus.errors import BombusError, ConfigError, DataError
from own_resnet import OwnResNet
from tiny import make_tiny, noise_batches, tree_hash, write_cifar10

# --- candidates ------------------------------------------------------------------------------


def numbered(pattern: str, *lengths: int) -> tuple[str, ...]:
    return tuple(pattern.format(i, j) for i, n in enumerate(lengths, 1) for j in range(n))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wrn-28-10", numbered("block{}.layer.{}", 4, 4, 4)),
        ("wrn-10-1", numbered("block{}.layer.{}", 1, 1, 1)),
        ("resnext29-4x32", numbered("stage_{}.{}", 3, 3, 3)),
        ("resnet18", numbered("layer{}.{}", 2, 2, 2, 2)),
        ("resnet50", numbered("layer{}.{}", 3, 4, 6, 3)),
        ("vit-b16-224", tuple(f"blocks.{i}" for i in range(12))),
    ],
)
def test_candidates_of_our_networks(name: str, expected: tuple[str, ...]) -> None:
    with torch.device("meta"):
        assert candidate_blocks(create(name, num_classes=10)) == expected


class Halves(nn.Module):
    """A transformer whose blocks are lists of two halves, as some write it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.layers = nn.ModuleList(
            nn.ModuleList([
                nn.MultiheadAttention(8, 2, batch_first=True),
                nn.Sequential(nn.Conv1d(4, 4, 1), nn.GELU(), nn.Conv1d(4, 4, 1)),
            ])
            for _ in range(4)
        )  # fmt: skip
        self.head = nn.Linear(8, 3)


class Squeezed(nn.Module):
    """A unit with a small unit inside, as squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        gate = nn.ModuleDict({"down": nn.Conv2d(8, 2, 1), "up": nn.Conv2d(2, 8, 1)})
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3), gate, nn.Conv2d(8, 8, 1))


def pile() -> nn.Sequential:
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (OwnResNet(), numbered("layer{}.{}", 2, 2, 2)),
        (nn.ModuleDict({"net": OwnResNet()}), numbered("net.layer{}.{}", 2, 2, 2)),
        (make_tiny("vit"), tuple(f"blocks.{i}" for i in range(6))),
        (Halves(), tuple(f"layers.{i}" for i in range(4))),
        (
            nn.ModuleDict({f"layer{i}": nn.Sequential(Squeezed(), Squeezed()) for i in (1, 2)}),
            numbered("layer{}.{}", 2, 2),
        ),
        (nn.ModuleDict({f"unit{i}": Squeezed() for i in (1, 2)}), ("unit1", "unit2")),
        (pile(), ("0-1", "2-3", "4")),
    ],
)
def test_candidates_of_a_users_network(model: nn.Module, expected: tuple[str, ...]) -> None:
    assert candidate_blocks(model) == expected


# --- scores ----------------------------------------------------------------------------------

Batches = list[tuple[Tensor, Tensor]]


def source(count: int = 3, classes: int = 5) -> Batches:
    """The third class never occurs: its prototype is nobody's concern."""
    present = torch.tensor([c for c in range(classes) if c != 2])
    labels = present[torch.arange(8 * count) % len(present)].view(count, 8)
    return list(zip(noise_batches(count), labels, strict=True))


def explicit_score(
    model: nn.Module, head: str, block: str, batches: Batches, lr: float, noise: float, seed: int
) -> float:
    """The same by hand: own BatchNorm mode, own Adam, own entropy, features one image at a time."""

    def prepared() -> nn.Module:
        copy = deepcopy(model).eval()
        for module in copy.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train()
                module.momentum = 0.0
        return copy

    def prototypes(network: nn.Module) -> dict[int, Tensor]:
        seen: dict[int, list[Tensor]] = {}
        inputs: list[Tensor] = []
        handle = network.get_submodule(head).register_forward_hook(
            lambda _m, args, _out: inputs.append(args[0].detach())
        )
        for x, y in batches:
            with torch.no_grad():
                network(x)
            for feature, label in zip(inputs.pop(), y.tolist(), strict=True):
                seen.setdefault(label, []).append(feature.double())
        handle.remove()
        return {label: sum(group) / len(group) for label, group in seen.items()}  # type: ignore[misc]

    before = prototypes(prepared())
    network = prepared()
    trained = dict(network.get_submodule(block).named_parameters())
    first = {k: torch.zeros_like(p) for k, p in trained.items()}
    second = {k: torch.zeros_like(p) for k, p in trained.items()}
    generator = torch.Generator().manual_seed(seed)
    for t, (x, _) in enumerate(batches, 1):
        drawn = torch.randn(x.shape, generator=generator).to(x)
        p = network(x + noise * drawn).softmax(1)
        loss = -(p * p.log()).sum() / len(x)
        gradients = torch.autograd.grad(loss, list(trained.values()))
        with torch.no_grad():
            for (k, w), g in zip(trained.items(), gradients, strict=True):
                first[k] = 0.9 * first[k] + 0.1 * g
                second[k] = 0.999 * second[k] + 0.001 * g * g
                m, v = first[k] / (1 - 0.9**t), second[k] / (1 - 0.999**t)
                w -= lr * m / (v.sqrt() + 1e-8)
    after = prototypes(network)
    cosines = [
        float((before[c] * after[c]).sum() / (before[c].norm() * after[c].norm())) for c in before
    ]
    return sum(cosines) / len(cosines)


def entropy64(logits: Tensor) -> Tensor:
    assert logits.dtype == torch.float64
    return torch.special.entr(logits.softmax(1)).sum(1)


@pytest.mark.parametrize(
    ("model", "head", "block"),
    [
        (make_tiny("batchnorm"), "fc", "block1.layer.0"),
        (make_tiny("vit"), "head", "blocks.1"),
        (OwnResNet.trained(), "fc", "layer2.1"),
    ],
    ids=["wrn", "vit", "own"],
)
def test_a_score_derived_a_second_way(
    model: nn.Module, head: str, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library's entropy is in float32, and Adam makes whole steps of tiny gradients' rounding.
    monkeypatch.setattr(selection, "softmax_entropy", entropy64)
    settings: dict[str, Any] = {"lr": 0.01, "noise": 0.3, "seed": 4}
    model.double()
    batches = [(x.double(), y) for x, y in source()]
    scores = {s.name: s for s in score_blocks(model, batches, **settings)}
    assert tuple(scores) == candidate_blocks(model)
    expected = explicit_score(model, head, block, batches, **settings)
    assert expected < 1 - 1e-3, "the block did not move, so the test shows nothing"
    assert scores[block].similarity == pytest.approx(expected, abs=1e-10)
    raw = [s.similarity for s in scores.values()]
    low, high = min(raw), max(raw)
    assert [s.scaled for s in scores.values()] == pytest.approx(
        [(r - low) / (high - low) for r in raw]
    )
    assert [s.chosen for s in scores.values()] == [s.scaled > 0.75 for s in scores.values()]


def test_the_users_model_stays_as_it_was() -> None:
    model = OwnResNet.trained().train()
    frozen = next(model.parameters()).requires_grad_(False)
    before = tree_hash(model.state_dict())
    with torch.inference_mode():
        score_blocks(model, source(), blocks=["layer1.0"])
    assert tree_hash(model.state_dict()) == before
    assert all(module.training for module in model.modules())
    assert all(p.requires_grad == (p is not frozen) for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(m.track_running_stats for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def test_seeds_are_reproducible_and_blocks_independent() -> None:
    model = make_tiny("batchnorm")
    one = score_blocks(model, source(), seed=1)
    torch.randn(5)
    assert score_blocks(model, lambda: iter(source()), seed=1) == one
    alone = score_blocks(model, source(), blocks=["block2.layer.0"], seed=1)
    assert alone == [BlockScore("block2.layer.0", one[1].similarity, 1.0, True)]
    assert score_blocks(model, source(), seed=2)[0].similarity != one[0].similarity


def test_progress_counts_every_batch() -> None:
    calls: list[tuple[int, int | None]] = []
    score_blocks(make_tiny("vit"), source(2), progress=lambda *call: calls.append(call))
    assert calls == [(i, None if i <= 2 else 26) for i in range(1, 27)]


def test_a_single_image_is_left_out_where_batches_normalise() -> None:
    last = (torch.rand(1, 3, 16, 16), torch.tensor([0]))
    model = make_tiny("batchnorm")
    assert score_blocks(model, [*source(), last]) == score_blocks(model, source())
    model = make_tiny("vit")
    assert score_blocks(model, [*source(), last]) != score_blocks(model, source())


class Brittle(nn.Module):
    """An identity whose gradient is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.zero.sqrt()


def test_a_block_that_diverges_is_never_chosen() -> None:
    model = OwnResNet.trained()
    model.layer1[1] = Brittle()
    scores = score_blocks(model, source(), blocks=numbered("layer{}.{}", 2, 2, 2), lr=0.05)
    broken = scores.pop(1)
    assert broken == BlockScore("layer1.1", -1.0, 0.0, False, diverged=True)
    assert min(s.scaled for s in scores) == 0, "it stretched the scale of the others"
    assert max(s.scaled for s in scores) == 1
    assert not any(s.diverged for s in scores)


def test_faults() -> None:
    model = OwnResNet.trained()
    with pytest.raises(ConfigError, match="an iterator was given"):
        score_blocks(model, iter(source()))
    with pytest.raises(DataError, match="no source batches"):
        score_blocks(model, [])
    with pytest.raises(DataError, match=r"labels from 0 to 9; expected one label an image, 0 to 5"):
        score_blocks(model, [(torch.rand(4, 3, 16, 16), torch.tensor([0, 9, 1, 1]))])
    with pytest.raises(ConfigError, match="no module 'layer9'"):
        score_blocks(model, source(), blocks=["layer9"])
    with pytest.raises(ConfigError, match="lr=0"):
        score_blocks(model, source(), lr=0)
    with pytest.raises(ConfigError, match="'dropout' has no parameters"):
        score_blocks(model, source(), blocks=["dropout"])
    model.idle = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="'idle' took no part"):
        score_blocks(model, source(), blocks=["idle"])
    bare = nn.Sequential(model, nn.Softmax(1))
    with pytest.raises(ConfigError, match=r"No nn\.Linear of Sequential gives its logits"):
        score_blocks(bare, source(), blocks=["0.layer1"])
    with torch.no_grad():
        model.layer1[0].skip.weight[0] = float("nan")
    with pytest.raises(DataError, match="none of the source images finite features"):
        score_blocks(model, source())


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path: Path) -> tuple[str, str]:
    """Forty clean training images in a published layout, and weights."""
    clean = write_cifar10(tmp_path / "clean", 40)
    weights = tmp_path / "wrn.safetensors"
    torch.manual_seed(3)
    save_weights(create("wrn-16-1", num_classes=10), weights)
    return str(clean), str(weights)


def call(cifar: tuple[str, str], *more: str) -> None:
    data, weights = cifar
    tyro.cli(
        blocks_command,
        args=["--data", data, "--backbone", "wrn-16-1", "--weights", weights, "--device", "cpu",
              "--batch-size", "13", *more],
    )  # fmt: skip


def test_the_command(
    cifar: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(cifar, "--json", "--out", str(tmp_path / "blocks.json"))
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "blocks.json").read_text()) == printed
    assert printed["images"] == 40
    assert [b["name"] for b in printed["blocks"]] == list(numbered("block{}.layer.{}", 2, 2, 2))
    assert printed["chosen"] == [b["name"] for b in printed["blocks"] if b["chosen"]]
    call(cifar)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["block", "similarity", "scaled", "chosen"]
    assert len(lines) == 9
    assert lines[-1] == f"--set shallow={','.join(printed['chosen'])}"
    chosen = [line.split()[0] for line in lines[1:7] if line.endswith("yes")]
    assert chosen == printed["chosen"]
    call(cifar, "--images", "20", "--json", "--precision", "bf16")
    assert json.loads(capsys.readouterr().out)["images"] == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-classes", "7"), "expected 10 or 100"),
        (("--num-classes", "100"), "does not fit wrn-16-1"),
        (("--images", "1"), "--images 1, expected at least 2"),
        (("--data", "nowhere"), "nowhere"),
        (("--backbone", "wrn-16-x"), "no backbone named"),
        (("--weights",), "No weights file"),
    ],
)
def test_faults_of_the_command(
    cifar: tuple[str, str], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(BombusError, match=words):
        call(cifar, *arguments)
