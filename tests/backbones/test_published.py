"""Published weights by name: the real files' key names, wrappers and shapes, at full size.

The layouts are written down here by hand, from the publishers' own network definitions, not taken
from our networks. A tensor is one stored number stretched to its shape, so that a file of 86
million parameters has a few kilobytes; each key has its own number, so that a mix-up would show.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bombus.backbones import Backbone, create
from bombus.backbones import published as published_module
from bombus.backbones.input import HALF, IMAGENET
from bombus.backbones.published import PUBLISHED, named_weights, weights_folder
from bombus.backbones.weights import load_weights
from bombus.cli import main
from bombus.data.benchmarks import find_benchmark
from bombus.errors import ConfigError, UnknownNameError, WeightsError
from bombus.methods import find_method
from bombus.models import choose_backbone
from bombus.settings import RunSettings, make_config

Shapes = dict[str, tuple[int, ...]]
VIT = "timm:vit_base_patch16_224.augreg_in21k_ft_in1k"
RESNEXT = "robustbench:Hendrycks2020AugMix_ResNeXt"


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's real caches are looked into."""
    for name in ("BOMBUS_CACHE", "TORCH_HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)


# --- the layouts -----------------------------------------------------------------------------


def norm(name: str, width: int, *, counter: bool = True) -> Shapes:
    parts = ("weight", "bias", "running_mean", "running_var")
    shapes: Shapes = {f"{name}.{part}": (width,) for part in parts}
    return shapes | ({f"{name}.num_batches_tracked": ()} if counter else {})


def linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def robustbench_standard() -> Shapes:
    """WRN-28-10 as in RobustBench's architectures: four blocks a stage."""
    shapes: Shapes = {"conv1.weight": (16, 3, 3, 3)}
    inputs = 16
    for stage, outputs in enumerate((160, 320, 640), start=1):
        for place in range(4):
            name = f"block{stage}.layer.{place}"
            shapes |= norm(f"{name}.bn1", inputs)
            shapes[f"{name}.conv1.weight"] = (outputs, inputs, 3, 3)
            shapes |= norm(f"{name}.bn2", outputs)
            shapes[f"{name}.conv2.weight"] = (outputs, outputs, 3, 3)
            if place == 0:
                shapes[f"{name}.convShortcut.weight"] = (outputs, inputs, 1, 1)
            inputs = outputs
    return shapes | norm("bn1", 640) | linear("fc", 640, 10)


def augmix_resnext() -> Shapes:
    """ResNeXt-29, cardinality 4, base width 32: three blocks a stage, groups of a quarter."""
    shapes: Shapes = {"conv_1_3x3.weight": (64, 3, 3, 3), **norm("bn_1", 64)}
    inputs = 64
    for stage, planes in enumerate((64, 128, 256), start=1):
        width, outputs = planes // 2 * 4, planes * 4
        for place in range(3):
            name = f"stage_{stage}.{place}"
            shapes[f"{name}.conv_reduce.weight"] = (width, inputs, 1, 1)
            shapes |= norm(f"{name}.bn_reduce", width)
            shapes[f"{name}.conv_conv.weight"] = (width, width // 4, 3, 3)
            shapes |= norm(f"{name}.bn", width)
            shapes[f"{name}.conv_expand.weight"] = (outputs, width, 1, 1)
            shapes |= norm(f"{name}.bn_expand", outputs)
            if place == 0:
                shapes[f"{name}.downsample.0.weight"] = (outputs, inputs, 1, 1)
                shapes |= norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    return shapes | linear("classifier", 1024, 100)


def torchvision_resnet50(*, counter: bool = True) -> Shapes:
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64, counter=counter)}
    inputs = 64
    for layer, (planes, length) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for place in range(length):
            name = f"layer{layer}.{place}"
            for number, shape in enumerate(
                ((planes, inputs, 1, 1), (planes, planes, 3, 3), (4 * planes, planes, 1, 1)), 1
            ):
                shapes[f"{name}.conv{number}.weight"] = shape
                shapes |= norm(f"{name}.bn{number}", shape[0], counter=counter)
            if place == 0:
                shapes[f"{name}.downsample.0.weight"] = (4 * planes, inputs, 1, 1)
                shapes |= norm(f"{name}.downsample.1", 4 * planes, counter=counter)
            inputs = 4 * planes
    return shapes | linear("fc", 2048, 1000)


def timm_vit_base() -> Shapes:
    shapes: Shapes = {
        "cls_token": (1, 1, 768),
        "pos_embed": (1, 197, 768),
        "patch_embed.proj.weight": (768, 3, 16, 16),
        "patch_embed.proj.bias": (768,),
    }

    def layer_norm(name: str) -> Shapes:
        return {f"{name}.weight": (768,), f"{name}.bias": (768,)}

    for place in range(12):
        name = f"blocks.{place}"
        shapes |= layer_norm(f"{name}.norm1") | linear(f"{name}.attn.qkv", 768, 2304)
        shapes |= linear(f"{name}.attn.proj", 768, 768) | layer_norm(f"{name}.norm2")
        shapes |= linear(f"{name}.mlp.fc1", 768, 3072) | linear(f"{name}.mlp.fc2", 3072, 768)
    return shapes | layer_norm("norm") | linear("head", 768, 1000)


def filled(shapes: Shapes, prefix: str = "") -> dict[str, Tensor]:
    return {
        prefix + key: (torch.tensor(n) if not shape else torch.tensor(n / 1024).expand(shape))
        for n, (key, shape) in enumerate(shapes.items(), start=1)
    }


def empty(name: str, classes: int) -> Backbone:
    """A network whose values nobody has drawn yet: quick to make, and nothing is right by luck."""
    with torch.device("meta"):
        model = create(name, num_classes=classes)
    model.to_empty(device="cpu")
    for value in model.state_dict().values():
        value.fill_(7)
    return model


def save(content: Mapping[str, Any], place: Path, *, old: bool = False) -> Path:
    """`old`: as torch wrote files before 1.6, from which time some of the published ones are."""
    place.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, place, _use_new_zipfile_serialization=not old)
    return place


def trust(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the publisher's own digest were that of the stand-in file."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    entry = dataclasses.replace(PUBLISHED[name], sha256=digest[:8])
    monkeypatch.setitem(published_module.PUBLISHED, name, entry)


def assert_filled(model: Backbone, shapes: Shapes) -> None:
    own = model.state_dict()
    wanted = filled(shapes)
    assert {key for key in own if "num_batches_tracked" not in key} == {
        key for key in wanted if "num_batches_tracked" not in key
    }
    for key, value in wanted.items():
        assert torch.equal(own[key], value), key


# --- they load -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [True, False], ids=["state_dict of module.*", "plain"])
def test_robustbench_standard(wrapped: bool) -> None:
    shapes = robustbench_standard()
    content: Mapping[str, Any] = filled(shapes)
    if wrapped:
        content = {"state_dict": filled(shapes, "module.")}
    place = weights_folder() / "robustbench/cifar10/corruptions/Standard.pt"
    save(content, place, old=wrapped)
    model = empty("wrn-28-10", 10)
    loaded = load_weights(model, "robustbench:Standard")
    assert_filled(model, shapes)
    assert sum(p.numel() for p in model.parameters()) == 36_479_194  # as RobustBench counts
    assert (model.input.mean, model.input.std) == (None, None)
    assert "took robustbench:Standard from Standard.pt" in loaded.notes


@pytest.mark.parametrize("buffers", [True, False], ids=["with mu and sigma", "without"])
def test_augmix_resnext(buffers: bool) -> None:
    """What AugMix's training script saves, a network inside DataParallel; it never held mu."""
    shapes = augmix_resnext()
    state = filled(shapes, "module.")
    if buffers:
        state |= {f"module.{k}": torch.full((1, 3, 1, 1), 0.5) for k in ("mu", "sigma")}
    content = {
        "epoch": 199,
        "dataset": "cifar100",
        "model": "resnext",
        "state_dict": state,
        "best_acc": 0.7869,
        "optimizer": {"state": {}, "param_groups": [{"lr": 1e-6, "params": [0, 1]}]},
    }
    save(content, Path("models/cifar100/corruptions/Hendrycks2020AugMix_ResNeXt.pt"))
    model = empty("resnext29-4x32", 100)
    loaded = load_weights(model, [RESNEXT])
    assert_filled(model, shapes)
    assert sum(p.numel() for p in model.parameters()) == 6_900_132
    assert model.input == HALF
    assert any("is the model's own" in note for note in loaded.notes)


@pytest.mark.parametrize("counter", [True, False], ids=["with counters", "without"])
def test_torchvision_resnet50(counter: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = torchvision_resnet50(counter=counter)
    hub = Path("TORCH_HOME/hub/checkpoints").absolute()
    content: dict[str, Tensor] = filled(shapes)
    if not counter:  # the older file held parameters, not their values
        content = {k: nn.Parameter(v) if "running" not in k else v for k, v in content.items()}
    file = save(content, hub / "resnet50-0676ba61.pth")
    trust("torchvision:resnet50-v1", file, monkeypatch)
    model = empty("resnet50", 1000)
    loaded = load_weights(model, "torchvision:resnet50-v1")
    assert_filled(model, shapes)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032  # as torchvision counts
    assert model.input == IMAGENET
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_timm_vit() -> None:
    shapes = timm_vit_base()
    repository = "models--timm--vit_base_patch16_224.augreg_in21k_ft_in1k"
    snapshot = Path("HF_HOME/hub").absolute() / repository / "snapshots" / "0123abcd"
    save(filled(shapes), snapshot / "pytorch_model.bin")
    model = empty("vit-b16-224", 1000)
    load_weights(model, VIT)
    assert_filled(model, shapes)
    assert sum(p.numel() for p in model.parameters()) == 86_567_656  # as timm counts
    assert (model.input.mean, model.input.std) == (HALF.mean, HALF.std)
    # The same file as one line of papers feeds it, and the notes say so.
    notes = load_weights(model, "vida:vit_base_patch16_224-unnormalised").notes
    assert (model.input.mean, model.input.std) == (None, None)
    assert any("no longer with mean (0.5, 0.5, 0.5)" in note for note in notes)


# --- they are refused ------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_file_is_told_exactly(name: str, tmp_path: Path) -> None:
    entry = PUBLISHED[name]
    with pytest.raises(WeightsError) as caught:
        load_weights(torch.nn.Linear(1, 1), name)
    place = tmp_path / "BOMBUS_CACHE" / "weights" / entry.file
    assert f"save {entry.address} as {place}," in str(caught.value)
    assert str(caught.value).count(". ") == 0  # one sentence
    # And put there, it is found.
    save({"other.weight": torch.zeros(3)}, place.with_suffix(".pt")).rename(place)
    assert entry.find() == place


def test_another_networks_file_under_the_name() -> None:
    save(filled(augmix_resnext()), weights_folder() / PUBLISHED["robustbench:Standard"].file)
    model = create("wrn-10-1", num_classes=10)
    with pytest.raises(
        WeightsError, match=r"does not fit wrn-10-1.*fits 'resnext29-4x32' with 100"
    ):
        load_weights(model, "robustbench:Standard")


def test_another_digest_is_refused() -> None:
    place = weights_folder() / PUBLISHED["torchvision:resnet50-v1"].file
    save(filled(torchvision_resnet50()), place)
    with pytest.raises(WeightsError, match=r"not 0676ba61 as torchvision:resnet50-v1 has; delete"):
        load_weights(create("wrn-10-1", num_classes=10), "torchvision:resnet50-v1")


def test_names() -> None:
    assert named_weights([Path("robustbench:Standard")]) is PUBLISHED["robustbench:Standard"]
    for file in ("w.pt", "C:w.pt", r"C:\w.pt", "sub/robustbench:Standard", "https://x.org/w.pt"):
        assert named_weights([Path(file)]) is None
    with pytest.raises(UnknownNameError, match="did you mean 'robustbench:Standard'"):
        named_weights(["robustbench:Standrad"])
    with pytest.raises(UnknownNameError, match=r"choose one of: robustbench:Hendrycks2020"):
        named_weights(["hub:x"])
    with pytest.raises(ConfigError, match="a published name stands alone"):
        named_weights(["robustbench:Standard", "more.safetensors"])
    Path("robustbench:Standard").touch()  # a file of that very name is that file
    assert named_weights(["robustbench:Standard"]) is None


def test_each_entry_belongs_to_a_benchmark_and_a_network() -> None:
    for entry in PUBLISHED.values():
        for benchmark in entry.benchmarks:
            assert find_benchmark(benchmark).classes == entry.classes
        with torch.device("meta"):
            own = create(entry.backbone, num_classes=entry.classes).input
        if not entry.name.startswith("vida:"):  # whose point is to differ
            assert (own.mean, own.std) == (entry.input.mean, entry.input.std)


# --- the network follows ---------------------------------------------------------------------


def settings(benchmark: str, weights: str, backbone: str | None = None) -> RunSettings:
    return RunSettings(
        method="tent", benchmark=benchmark, weights=(Path(weights),), backbone=backbone
    )


def test_the_backbone_follows_from_the_name() -> None:
    asked = settings("imagenet-c", VIT)
    assert choose_backbone(asked, find_benchmark("imagenet-c")) == "vit-b16-224"
    tent = find_method("tent")
    assert make_config(tent, asked).lr == 1e-4  # type: ignore[attr-defined]
    convolutional = settings("imagenet-c", "torchvision:resnet50-v1")
    assert make_config(tent, convolutional).lr == 2.5e-4  # type: ignore[attr-defined]
    same = settings("imagenet-c", VIT, "vit-b16-224")
    assert choose_backbone(same, find_benchmark("imagenet-c")) == "vit-b16-224"


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"holds the weights of vit-b16-224, but .* resnet50"):
        choose_backbone(settings("imagenet-c", VIT, "resnet50"), find_benchmark("imagenet-c"))
    with pytest.raises(
        ConfigError, match=r"10 classes apart, but cifar100-c has 100; .* cifar10-c"
    ):
        choose_backbone(
            settings("cifar100-c", "robustbench:Standard"), find_benchmark("cifar100-c")
        )


# --- the command line ------------------------------------------------------------------------


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr().err
    assert stop.value.code == 2, said
    (sentence,) = said.strip().splitlines()
    return sentence


def test_wherever_weights_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "tent", "--out", "run", "--weights"]
    warmup = ["warmup", "--data", ".", "--out", "w.safetensors", "--weights"]
    blocks = ["blocks", "--data", ".", "--weights"]
    for command in (run, warmup, blocks):
        missing = refused([*command, "robustbench:Standard"], capsys)
        assert f"as {weights_folder()}/robustbench/cifar10/corruptions/Standard.pt" in missing
        assert "did you mean 'robustbench:Standard'" in refused(
            [*command, "robustbench:standard"], capsys
        )
    assert "--num-classes 1000, expected 10 or 100" in refused([*blocks, VIT], capsys)
    assert "--backbone NAME" in refused([*blocks, "w.pt"], capsys)
    assert not Path("run").exists()


def test_list_and_doctor_say_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    here = PUBLISHED["robustbench:Standard"].file
    save({"w": torch.zeros(1)}, weights_folder() / here)
    main(["list", "weights"])
    lines = capsys.readouterr().out.splitlines()
    main(["list", "weights", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(PUBLISHED)
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["name", *PUBLISHED]
    assert [row["file"].startswith("here: ") for row in rows] == [
        name == "robustbench:Standard" for name in PUBLISHED
    ]
    assert rows[2]["details"]["sha256 begins with"] == "0676ba61"
    main(["doctor"])
    said = capsys.readouterr().out
    assert f"ok    weights robustbench:Standard in {weights_folder() / here}" in said
    assert f"note  weights {VIT} are not here; save https://huggingface.co/" in said


def test_a_run_records_the_name_and_the_files_hash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "robustbench:Standard"
    small = dataclasses.replace(PUBLISHED[name], backbone="wrn-10-1")
    monkeypatch.setitem(published_module.PUBLISHED, name, small)
    torch.manual_seed(0)
    state = create("wrn-10-1", num_classes=10).state_dict()
    file = save({f"module.{k}": v for k, v in state.items()}, weights_folder() / small.file)
    call = ["run", "bn", "--weights", name, "--domains", "fog", "--samples", "8", "--out", "run"]
    main(call)
    result = json.loads(Path("run/run.json").read_text())
    assert result["weights"] == [name]
    assert result["backbone"] == "wrn-10-1"
    assert result["weights_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"took {name} from Standard.pt" in result["notes"]
    assert json.loads(Path("run/settings.json").read_text())["weights"] == [name]
    capsys.readouterr()
    main([*call, "--resume"])  # the same question again
    assert "already" in refused(call, capsys)
