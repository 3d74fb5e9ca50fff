"""Preflight: each mistake is named in one sentence, and nobody healthy is accused."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import bombus
from bombus.backbones import _BACKBONES, create
from bombus.backbones.input import CIFAR, HALF, IMAGENET, Input
from bombus.backbones.vit import VisionTransformer
from bombus.backbones.weights import load_weights, save_weights
from bombus.cli import main
from bombus.data.benchmarks import find_benchmark
from bombus.data.embedded import EmbeddedImages
from bombus.errors import ConfigError
from bombus.finding import Finding
from bombus.methods import find_method
from bombus.normalisation import Fit, entering, gaussian_divergence, information, same
from bombus.preflight import examine
from bombus.report.groups import group_runs
from bombus.report.records import read_run
from bombus.settings import RunSettings
from tiny import kinds_of, make_tiny, noise_batches, tree_hash

METHODS = tuple(bombus.known_methods())
SHARED = Path(__file__).parents[2] / "shared" / "weights"
# Where a healthy network came nearest to looking ill, and the first domain of every stream.
HARDEST = ("gaussian_noise", "impulse_noise", "fog", "contrast", "saturate", "brightness", "frost")


@pytest.fixture(scope="module")
def images() -> EmbeddedImages:
    return EmbeddedImages()


@pytest.fixture(scope="module")
def clean(images: EmbeddedImages) -> Tensor:
    return torch.from_numpy(images.clean[:32].transpose(0, 3, 1, 2).copy()).float() / 255


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """The demo's network: BatchNorm, trained on [0, 1] straight in."""
    model = create("wrn-16-1", num_classes=10)
    load_weights(model, find_benchmark("demo").weights)
    return model.eval()


class Plain(nn.Module):
    """A user's network that was trained on images normalised in some way; nothing of ours."""

    def __init__(self, net: nn.Module, trained_with: Input) -> None:
        super().__init__()
        self.net = net
        mean, std = trained_with.mean or (0.0,) * 3, trained_with.std or (1.0,) * 3
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * self.std + self.mean)


class ScaleAndShift(nn.Module):
    """What a BatchNorm does in evaluation mode, by a layer that is none."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        self.scale = nn.Parameter(scale.detach().view(1, -1, 1, 1))
        self.shift = nn.Parameter(
            (norm.bias - norm.running_mean * scale).detach().view(1, -1, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class FrozenNorm(nn.Module):
    """As detection networks have it: a BatchNorm whose every value is a buffer."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


def without_batch_norm(model: nn.Module, instead: type[nn.Module]) -> nn.Module:
    model = deepcopy(model)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            model.set_submodule(path, instead(module))
    return model


def sentence(findings: list[Finding], state: str) -> str:
    """The one thing that was found."""
    (finding,) = findings
    assert finding.state == state, finding
    assert "\n" not in finding.text
    assert finding.text.endswith(".")
    assert "; " in finding.text or ": " in finding.text  # what is so, and what to do
    return finding.text


def serious(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.state in ("warn", "bad")]


# --- the maths -------------------------------------------------------------------------------


def test_information_by_hand() -> None:
    logits = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    told = 0.0
    rows = [[math.exp(v) / sum(map(math.exp, row)) for v in row] for row in logits.tolist()]
    for column in zip(*rows, strict=True):
        mean = sum(column) / 7
        told += sum(p * math.log(p / mean) for p in column) / 7  # KL of each answer from the mean
    assert information(logits) == pytest.approx(told, rel=1e-9)
    sure = torch.full((4, 4), -1e4).fill_diagonal_(1e4)
    assert information(sure) == pytest.approx(math.log(4))
    assert information(sure[:1].expand(4, 4)) == pytest.approx(0, abs=1e-6)
    assert math.isnan(information(torch.full((2, 3), math.nan)))


def test_divergence_is_that_of_gaussians() -> None:
    generator = torch.Generator().manual_seed(1)
    mean, known_mean = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    var, known_var = torch.rand(2, 5, generator=generator, dtype=torch.float64) + 0.1
    expected = kl_divergence(Normal(mean, var.sqrt()), Normal(known_mean, known_var.sqrt())).mean()
    assert gaussian_divergence(mean, var, known_mean, known_var) == pytest.approx(expected.item())


@pytest.mark.parametrize("own", [CIFAR, HALF, IMAGENET])
@pytest.mark.parametrize("way", [CIFAR, HALF, IMAGENET])
def test_images_can_enter_in_any_way_whatever_the_model_applies(own: Input, way: Input) -> None:
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    assert torch.allclose(own.normalise(entering(x, way, own)), way.normalise(x))
    assert same(own, way) is (own is way)
    in_bytes = Input(high=255.0, mean=(255 * 0.5,) * 3, std=(255 * 0.5,) * 3)  # HALF, said in 0-255
    assert torch.allclose(in_bytes.normalise(entering(255 * x, way, in_bytes)), way.normalise(x))
    assert same(in_bytes, way) is (way is HALF)


@pytest.mark.parametrize(
    ("this", "other", "better"),
    [
        ((1.6, 0.40), (2.0, 0.02), True),
        ((1.6, 0.40), (2.0, 0.20), False),  # not four times nearer
        ((1.6, 0.05), (2.0, 0.01), False),  # near enough as it is
        ((2.0, 0.40), (2.0, 0.02), False),  # the answers do not agree
        ((1.6, None), (2.0, None), True),
        ((1.8, None), (2.0, None), False),
        ((0.6, None), (1.3, None), False),  # much better, but far from well: other images
    ],
)
def test_what_is_clearly_better(this: Any, other: Any, better: bool) -> None:
    a, b = (Fit(CIFAR, told, away, classes=10, images=32) for told, away in (this, other))
    assert b.better_than(a) is better
    assert not a.better_than(b)


# --- the input's normalisation ---------------------------------------------------------------


def test_a_vit_without_its_mean_and_std() -> None:
    model = make_tiny("vit")
    assert not examine(model, "tent")
    model.input = replace(model.input, mean=None, std=None)
    said = sentence(examine(model, "tent"), "warn")
    assert "without mean and std" in said
    assert "trained with mean 0.5, std 0.5" in said
    assert "unless these weights were trained otherwise" in said
    model.input = replace(IMAGENET, size=16)
    assert "mean (0.485, 0.456, 0.406)" in sentence(examine(model, "tent"), "warn")
    said = sentence(examine(model, "tent", on_purpose="as its weights ask for"), "note")
    assert "as its weights ask for" in said


def test_an_imagenet_network_without_its_mean_and_std() -> None:
    model = create("resnet18", num_classes=10)
    assert not examine(model, "tent")
    model.input = Input()
    assert "mean (0.485, 0.456, 0.406)" in sentence(examine(model, "tent"), "warn")


def test_what_timm_says_of_its_networks_counts() -> None:
    model = make_tiny("groupnorm")
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # type: ignore[assignment]
    said = sentence(examine(model, "tent"), "warn")
    assert "first layer of an nn.Sequential" in said
    model.pretrained_cfg = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}  # type: ignore[assignment]
    assert not examine(model, "tent")


@pytest.mark.parametrize("trained_with", [HALF, IMAGENET])
def test_the_images_themselves_show_it(
    trained: nn.Module, clean: Tensor, trained_with: Input
) -> None:
    model = Plain(trained, trained_with).eval()
    said = sentence(examine(model, "tent", x=clean), "warn")
    assert f"trained with mean {trained_with.mean[0] if trained_with is HALF else '('}" in said
    rightly = nn.Sequential(_Normalise(trained_with), model).eval()
    assert not examine(rightly, "tent", x=clean)


class _Normalise(nn.Module):
    def __init__(self, input: Input) -> None:
        super().__init__()
        self.how = input

    def forward(self, x: Tensor) -> Tensor:
        return self.how.normalise(x)


def test_answers_show_it_where_there_is_no_batch_norm(trained: nn.Module, clean: Tensor) -> None:
    bare = without_batch_norm(trained, ScaleAndShift)
    with torch.no_grad():
        assert torch.allclose(bare(clean), trained(clean), atol=1e-3)
    assert not examine(Plain(bare, CIFAR).eval(), "cotta", x=clean)
    said = sentence(examine(Plain(bare, IMAGENET).eval(), "cotta", x=clean), "warn")
    assert "trained with mean (0.485" in said


def test_an_exception_to_the_family_proves_itself(trained: nn.Module, clean: Tensor) -> None:
    """A WRN that was trained on (x - 0.5) / 0.5, as some published ones are."""
    model: Any = deepcopy(trained)
    model.conv1 = Plain(model.conv1, HALF)
    assert "without mean and std" in sentence(examine(model, "tent", x=clean), "warn")
    model.input = HALF
    assert not examine(model, "tent", x=clean)
    assert examine(model, "tent")  # without images it must be taken at its word


# --- the model -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["groupnorm", "vit"])
def test_bn_without_batch_norm_is_the_source_model(kind: str) -> None:
    model, x = make_tiny(kind), noise_batches(1)[0]
    said = sentence(examine(model, "bn"), "warn")
    assert "no BatchNorm" in said
    assert torch.equal(bombus.adapt(model, "bn")(x), bombus.adapt(model, "source")(x))
    assert not examine(model, "tent")


def test_batches_too_small_for_statistics() -> None:
    model = make_tiny("batchnorm")
    assert "batches of 1" in sentence(examine(model, "tent", batch_size=1), "warn")
    assert "Batches of 7" in sentence(examine(model, "bn", batch_size=7), "warn")
    assert not examine(model, "tent", batch_size=8)
    assert not examine(model, "source", batch_size=1)
    own_statistics = find_method("vdp").Config(statistics="source")  # type: ignore[call-arg]
    assert not examine(model, "vdp", own_statistics, batch_size=1)
    for kind in ("groupnorm", "vit"):
        assert not examine(make_tiny(kind), "tent", batch_size=1)
    adapter = bombus.adapt(model, "tent")  # it says: learns nothing
    before = tree_hash(adapter.state_dict())
    assert torch.equal(adapter(noise_batches(1, 1)[0]), model(noise_batches(1, 1)[0]))
    assert tree_hash(adapter.state_dict()) == before


def test_batch_norm_in_disguise(trained: nn.Module) -> None:
    frozen = without_batch_norm(trained, FrozenNorm)
    assert "FrozenNorm" in sentence(examine(frozen, "cotta"), "warn")
    assert "FrozenNorm" in sentence(examine(frozen, "bn"), "warn")
    assert not examine(frozen, "source")


def test_batch_norm_that_keeps_no_statistics() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()
    ).eval()
    assert "track_running_stats=True" in sentence(examine(model, "tent"), "warn")


def test_frozen_parameters_make_no_difference() -> None:
    model, x = make_tiny("batchnorm"), noise_batches(2)
    frozen = deepcopy(model).requires_grad_(False)
    assert "requires_grad=False" in sentence(examine(frozen, "tent"), "note")
    assert not examine(frozen, "source")
    adapters = [bombus.adapt(m, "tent") for m in (model, frozen)]
    answers = [[adapter(batch) for batch in x][-1] for adapter in adapters]
    assert torch.equal(*answers)


def test_weights_of_half_precision() -> None:
    model = make_tiny("vit")
    assert "model.float()" in sentence(examine(deepcopy(model).half(), "tent"), "bad")
    assert "bfloat16" in sentence(examine(deepcopy(model).bfloat16(), "cotta"), "warn")
    assert not examine(deepcopy(model).half(), "source")
    with pytest.raises(ConfigError, match="float16"):
        bombus.adapt(model.half(), "tent")  # it says: cannot work


def test_weights_made_in_inference_mode_are_no_problem() -> None:
    with torch.inference_mode():
        model = make_tiny("batchnorm")
    assert not examine(model, "tent", x=noise_batches(1)[0])
    bombus.adapt(model, "tent")(noise_batches(1)[0])


def test_what_cannot_be_adapted() -> None:
    bare = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert "no float parameters" in sentence(examine(bare, "tent"), "bad")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_layers() -> None:
    from torch.ao.nn.quantized.dynamic import Linear

    model = make_tiny("groupnorm")
    model.head = Linear(16, 5)
    assert "quantised layers" in sentence(examine(model, "tent"), "bad")


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.1), "DropPath"])
def test_active_dropout_is_a_note_and_nothing_is_changed(layer: Any) -> None:
    if layer == "DropPath":
        layer = type("DropPath", (nn.Identity,), {"drop_prob": 0.1})()
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    before = tree_hash(model.state_dict())
    x = noise_batches(1, 32)[0]
    said = sentence(examine(model, "tent", x=x), "note")
    assert type(layer).__name__ in said
    assert "evaluation mode" in said
    assert all(module.training for module in model.modules())
    assert tree_hash(model.state_dict()) == before
    assert not examine(model.eval(), "tent", x=x)
    layer.p = layer.drop_prob = 0.0
    assert not examine(model.train(), "tent", x=x)


# --- the images and the settings -------------------------------------------------------------


def test_images_that_cannot_be_used() -> None:
    model, x = make_tiny("batchnorm"), noise_batches(1)[0]
    assert "divide 8-bit values by 255" in sentence(examine(model, "tent", x=255 * x), "bad")
    assert "x.permute" in sentence(examine(model, "tent", x=x.permute(0, 2, 3, 1)), "bad")
    assert "None of the 8" in sentence(examine(model, "tent", x=x * math.nan), "bad")
    talkative = make_tiny("groupnorm")
    talkative.register_forward_hook(lambda module, given, logits: (logits, given))
    assert "answered 8 images with a tuple of 2" in sentence(examine(talkative, "tent", x=x), "bad")
    with torch.no_grad():
        next(model.parameters()).fill_(math.inf)
    assert "NaN or infinity" in sentence(examine(model, "tent", x=x), "bad")


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("rdumb", {"margin": 0.4 * math.log(1000)}, "margin=2.76 is a part of ln(10) = 2.30"),
        ("sar", {"margin": 1.2}, "every answer is reliable"),
        ("eata", {"margin": 0.0}, "no answer is ever reliable"),
        ("obao", {"margin": 2.0}, "margin=2"),
        ("sar", {"floor": 1.0}, "returns to the source after every step"),
        ("eata", {"redundancy": 0.05}, "for many more than 10 classes"),
        ("cotta", {"threshold": 0.1}, "never averages over views"),
    ],
)
def test_settings_for_another_number_of_classes(
    method: str, settings: dict[str, float], words: str
) -> None:
    chosen = find_method(method)
    model = create("wrn-10-1", num_classes=10)
    assert words in sentence(examine(model, method, chosen.Config(**settings)), "warn")


def test_published_settings_suit_their_benchmarks() -> None:
    networks = {"cifar10-c": 10, "cifar100-c": 100, "imagenet-c": 1000}
    for name, classes in networks.items():
        model = create("wrn-10-1", num_classes=classes)
        for method in METHODS:
            chosen = find_method(method)
            if not chosen.transformers_only:
                config = chosen.Config.for_benchmark(name)
                assert not examine(model, chosen, config, batch_size=64), (name, method)


# --- nobody healthy is accused ---------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_every_kind_of_network(method: str) -> None:
    x = noise_batches(1, size=32)[0]
    for kind in kinds_of(method):
        found = serious(examine(make_tiny(kind), method, batch_size=32, x=x))
        if method == "bn" and kind != "batchnorm":
            (found_out,) = found
            assert "no BatchNorm" in found_out.text
        else:
            assert not found, (method, kind)


@pytest.mark.parametrize("domain", HARDEST)
def test_the_demo_is_healthy_under_any_corruption(
    trained: nn.Module, images: EmbeddedImages, domain: str
) -> None:
    x, _ = images.load(domain, 5, np.arange(100, 132))
    for way in (CIFAR, HALF, IMAGENET):  # as if trained with each of them
        rightly = nn.Sequential(_Normalise(way), Plain(trained, way)).eval()
        assert not examine(rightly, "tent", x=x)
    assert not examine(trained, "tent", batch_size=100, x=x)


def test_dark_pale_and_one_sided_images_are_no_mistake(
    trained: nn.Module, images: EmbeddedImages, clean: Tensor
) -> None:
    cats = (
        torch.from_numpy(images.clean[images.labels == 3][:32].transpose(0, 3, 1, 2).copy()) / 255
    )
    strange = (clean * 0.1, clean * 0.03, 1 - (1 - clean) * 0.2, 1 - clean, cats, clean[:3])
    for way in (CIFAR, HALF, IMAGENET):
        rightly = nn.Sequential(_Normalise(way), Plain(trained, way)).eval()
        for x in strange:
            assert not examine(rightly, "tent", x=x)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared weights are not beside this clone")
@pytest.mark.parametrize(
    ("backbone", "file", "domains"),
    [
        ("wrn-16-2", "cifar10-wrn-16-2.safetensors", HARDEST),
        ("vit-s4-32", "cifar10-vit-s4.safetensors", ("gaussian_noise",)),
    ],
)
def test_trained_networks_are_healthy(
    backbone: str, file: str, domains: tuple[str, ...], images: EmbeddedImages
) -> None:
    model = create(backbone, num_classes=10)
    load_weights(model, [SHARED / file])
    for domain in domains:
        x, _ = images.load(domain, 5, np.arange(16))
        assert not examine(model, "tent", batch_size=200, x=x), domain


# --- the command line ------------------------------------------------------------------------

SHORT = ["--samples", "20", "--batch-size", "10", "--domains", "fog"]


def run_json(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return result


def test_a_run_says_and_records_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "sar", *SHORT, "--set", "margin=2.76", "--out", str(tmp_path / "odd")])
    said = capsys.readouterr().err
    assert said.count("sar: warn: margin=2.76") == 1
    (recorded,) = run_json(tmp_path / "odd")["preflight"]
    assert recorded in said
    main(["run", "sar", *SHORT, "--out", str(tmp_path / "well")])
    assert "warn" not in capsys.readouterr().err
    assert run_json(tmp_path / "well")["preflight"] == []


def test_doctor_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--model"])
    assert capsys.readouterr().out == "ok    tent suits this network, in batches of 100\n"
    main(["doctor", "--model", "--method", "bn", "--batch-size", "1"])  # warned, but not bad
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warn  One image")
    for forgot in (["--batch-size", "1"], ["--method", "bee"], ["--domains", "fog"]):
        with pytest.raises(SystemExit) as stop:
            main(["doctor", *forgot])
        assert stop.value.code == 2
        assert "add --model" in capsys.readouterr().err


def test_doctor_without_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "wrn.safetensors"
    save_weights(create("wrn-10-1", num_classes=10), weights)
    network = ["--benchmark", "cifar10-c", "--backbone", "wrn-10-1", "--weights", str(weights)]
    main(["doctor", "--model", *network])
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("note  Nothing was asked of images")
    assert last.startswith("ok    tent")
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--model", *network, "--method", "eata"])
    assert stop.value.code == 1
    (_, line) = capsys.readouterr().out.splitlines()
    assert line.startswith("bad   eata needs source samples")
    assert "--source FOLDER" in line
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--model", *network, "--data", str(tmp_path / "nowhere")])
    assert stop.value.code == 2
    assert "nowhere" in capsys.readouterr().err


def test_doctor_tells_of_steps_that_are_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["doctor", "--model", "--method", "cotta"]
    main(call)
    assert "suits this network" in capsys.readouterr().out
    main([*call, "--set", "lr=0.1"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warn  at lr=0.1 one step of Adam")
    assert "try lr=" in line


def test_legacy_vida(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = partial(VisionTransformer, size=32, patch=8, width=16, depth=3, heads=2)
    monkeypatch.setitem(_BACKBONES, "vit-tiny", tiny)
    weights = tmp_path / "vit.safetensors"
    save_weights(create("vit-tiny", num_classes=10), weights)
    call = ["run", "tent", "--backbone", "vit-tiny", "--weights", str(weights), *SHORT]
    main([*call, "--out", str(tmp_path / "usual")])
    assert "mean and std" not in capsys.readouterr().err
    main([*call, "--legacy-vida", "--out", str(tmp_path / "legacy")])
    assert "tent: note: " in capsys.readouterr().err
    usual, legacy = run_json(tmp_path / "usual"), run_json(tmp_path / "legacy")
    assert (usual["preflight"], usual["input"]["mean"]) == ([], [0.5, 0.5, 0.5])
    assert "on purpose (--legacy-vida)" in legacy["preflight"][0]
    assert legacy["notes"][-1].startswith("--legacy-vida: un-normalised input")
    assert legacy["input"] == {**usual["input"], "mean": None, "std": None}
    assert json.loads((tmp_path / "legacy" / "settings.json").read_text())["legacy_vida"] is True

    both = [read_run(tmp_path / name) for name in ("usual", "legacy")]
    assert [g.label for g in group_runs(both)] == ["tent", "tent (un-normalised input)"]
    (alone,) = group_runs(both[1:])
    assert alone.label == "tent (un-normalised input)"  # also where nothing else is listed

    with pytest.raises(SystemExit) as stop:
        main([*call, "--resume", "--out", str(tmp_path / "legacy")])
    assert stop.value.code == 2
    assert "another legacy_vida" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["run", "tent", *SHORT, "--legacy-vida", "--out", str(tmp_path / "cnn")])
    assert stop.value.code == 2
    assert "wrn-16-1 is none" in capsys.readouterr().err
    assert not (tmp_path / "cnn").exists()


def test_runs_begun_before_the_option_existed_go_on(tmp_path: Path) -> None:
    call = ["run", "source", *SHORT, "--out", str(tmp_path)]
    main(call)
    stored = json.loads((tmp_path / "settings.json").read_text())
    assert "legacy_vida" not in stored
    assert stored.keys() - {f.name for f in fields(RunSettings)} == {"config", "code"}
    main([*call, "--resume"])


def test_a_file_that_says_how_it_was_trained_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny("vit")
    model.input = replace(model.input, mean=None, std=None)
    save_weights(model, tmp_path / "vit.safetensors")
    other = make_tiny("vit")
    assert load_weights(other, tmp_path / "vit.safetensors").says_input
    torch.save(model.state_dict(), tmp_path / "vit.pt")
    assert not load_weights(make_tiny("vit"), tmp_path / "vit.pt").says_input


def test_unknown_methods_are_named() -> None:
    with pytest.raises(LookupError, match="did you mean 'tent'"):
        examine(make_tiny("vit"), "tnt")
    with pytest.raises(ConfigError):
        bombus.adapt(make_tiny("batchnorm"), "tent", config=find_method("sar").Config())
