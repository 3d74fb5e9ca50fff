"""CIFAR-100-C and ImageNet-C from files in their published layouts to finished runs.

The files are small, their layout is exact: `bombus run` reads them as it would read the real ones.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from bombus.backbones import create
from bombus.backbones.published import PUBLISHED, weights_folder
from bombus.backbones.weights import save_weights
from bombus.cli import main
from bombus.data.benchmarks import find_benchmark
from bombus.data.imagenet_c import ImageNetC
from bombus.data.source import FolderBatches
from bombus.data.stream import Stream
from bombus.errors import DataError
from bombus.methods import find_method, known_methods
from tiny import LEAN

METHODS = known_methods()
EVERYWHERE = [name for name, method in METHODS.items() if not method.transformers_only]
TRANSFORMERS = [name for name, method in METHODS.items() if method.transformers_only]


def run(method: str, *arguments: object, source: Path | None = None, out: Path) -> dict[str, Any]:
    """A method through the command line, with small stores and few augmentations."""
    chosen = find_method(method)
    lean = {**LEAN, "augmentations": 2, "warmup_rounds": 1}
    names = [f.name for f in fields(chosen.Config) if f.name in lean]
    call = ["run", method, *map(str, arguments), "--device", "cpu", "--out", str(out)]
    call += ["--set", *(f"{name}={lean[name]}" for name in names)] if names else []
    if chosen.needs != "none":
        call += ["--source", str(source)]
    main(call)
    result: dict[str, Any] = json.loads((out / "run.json").read_text())
    return result


# --- CIFAR-100-C -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-100-C (4 images a severity, five severities a file) and cifar-100-python/train."""
    root = tmp_path_factory.mktemp("cifar")
    chooser = np.random.default_rng(0)
    published = root / "CIFAR-100-C"
    published.mkdir()
    for name in ("gaussian_noise", "fog"):
        np.save(published / f"{name}.npy", chooser.integers(0, 256, (20, 32, 32, 3), np.uint8))
    np.save(published / "labels.npy", np.tile(np.array([49, 99, 0, 7], np.int32), 5))
    train = root / "cifar-100-python"
    train.mkdir()
    content = {
        b"filenames": [f"image_{n}.png".encode() for n in range(8)],
        b"batch_label": b"training batch 1 of 1",
        b"fine_labels": [n * 12 for n in range(8)],
        b"coarse_labels": list(range(8)),
        b"data": chooser.integers(0, 256, (8, 3072), np.uint8),
    }
    (train / "train").write_bytes(pickle.dumps(content, protocol=2))
    torch.manual_seed(0)
    for name in ("wrn-10-1", "vit-s4-32"):
        save_weights(create(name, num_classes=100), root / f"{name}.safetensors")
    return root


def cifar_call(cifar: Path, backbone: str) -> list[str]:
    return [
        "--benchmark", "cifar100-c", "--data", str(cifar / "CIFAR-100-C"), "--batch-size", "4",
        "--domains", "gaussian_noise", "fog", "--backbone", backbone, "--weights",
        str(cifar / f"{backbone}.safetensors"),
    ]  # fmt: skip


@pytest.mark.parametrize("method", EVERYWHERE)
def test_every_method_on_cifar100_c(method: str, cifar: Path, tmp_path: Path) -> None:
    source = cifar / "cifar-100-python"
    result = run(method, *cifar_call(cifar, "wrn-10-1"), source=source, out=tmp_path / "run")
    assert [(d["name"], d["samples"]) for d in result["domains"]] == [
        ("gaussian_noise", 4), ("fog", 4),
    ]  # fmt: skip
    assert result["benchmark"] == result["data"]["name"] == "cifar100-c"
    if METHODS[method].needs != "none":
        assert result["source_access"] == METHODS[method].needs
        assert result["cost"]["source_bytes"] == 8 * 3 * 32 * 32
    else:
        assert result["cost"]["source_bytes"] == 0
    for name, value in METHODS[method].Config.published.get("cifar100-c", {}).items():
        if name not in LEAN:
            assert result["config"][name] == value


@pytest.mark.parametrize("method", TRANSFORMERS)
def test_transformer_methods_on_cifar100_c(method: str, cifar: Path, tmp_path: Path) -> None:
    call = [*cifar_call(cifar, "vit-s4-32"), "--samples", "2", "--domains", "fog"]
    source = cifar / "cifar-100-python"
    result = run(method, *call, source=source, out=tmp_path / "run")
    assert [(d["name"], d["samples"]) for d in result["domains"]] == [("fog", 2)]


@pytest.mark.parametrize("method", ["eata", "bee"])
def test_the_published_network_on_cifar100_c(
    method: str, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ResNeXt-29 by its published name, from a file as AugMix's training script writes it."""
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "cache"))
    name = "robustbench:Hendrycks2020AugMix_ResNeXt"
    torch.manual_seed(0)
    state = create("resnext29-4x32", num_classes=100).state_dict()
    place = weights_folder() / PUBLISHED[name].file
    place.parent.mkdir(parents=True)
    wrapped = {
        "epoch": 199,
        "model": "resnext",
        "state_dict": {f"module.{k}": v for k, v in state.items()},
    }
    torch.save(wrapped, place)
    call = [*cifar_call(cifar, "wrn-10-1")[:9], "--samples", "2", "--weights", name]
    result = run(method, *call, source=cifar / "cifar-100-python", out=tmp_path / "run")
    assert result["backbone"] == "resnext29-4x32"
    assert result["weights"] == [name]
    assert result["input"]["mean"] == [0.5, 0.5, 0.5]
    assert [d["name"] for d in result["domains"]] == ["gaussian_noise", "fog"]


# --- ImageNet-C ------------------------------------------------------------------------------

WNIDS = ("n01440764", "n01443537", "n02105855")


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Smooth, as photographs are, so that resizing and JPEG leave something of it."""
    rough = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet-C (224 px JPEG), training images of any size, and a network's weights."""
    root = tmp_path_factory.mktemp("imagenet")
    for corruption, severity in product(("gaussian_noise", "fog"), (3, 5)):
        for number, wnid in enumerate(WNIDS):
            place = root / "ImageNet-C" / corruption / str(severity) / wnid
            place.mkdir(parents=True)
            file = place / f"ILSVRC2012_val_{number:08}.JPEG"
            picture(224, 224, seed=10 * severity + number).save(file, "JPEG")
    others = [f"n9{number:07}" for number in range(1000 - len(WNIDS))]
    (root / "ImageNet-C" / "classes.txt").write_text("\n".join([*WNIDS, *others]))
    for number, wnid in enumerate(WNIDS[1:]):  # fewer classes than are tested
        place = root / "train" / wnid
        place.mkdir(parents=True)
        picture(300 + 40 * number, 280, seed=number).save(place / f"{wnid}_{number}.JPEG", "JPEG")
    torch.manual_seed(0)
    save_weights(create("resnet18", num_classes=1000), root / "resnet18.safetensors")
    return root


def imagenet_call(imagenet: Path, benchmark: str = "imagenet-c") -> list[str]:
    return [
        "--benchmark", benchmark, "--data", str(imagenet / "ImageNet-C"), "--batch-size", "2",
        "--domains", "fog", "--backbone", "resnet18", "--weights",
        str(imagenet / "resnet18.safetensors"),
    ]  # fmt: skip


@pytest.mark.parametrize("method", EVERYWHERE)
def test_every_method_on_imagenet_c(method: str, imagenet: Path, tmp_path: Path) -> None:
    source = imagenet / "train"
    call = imagenet_call(imagenet)
    result = run(method, *call, "--samples", 2, source=source, out=tmp_path / "run")
    assert [(d["name"], d["samples"]) for d in result["domains"]] == [("fog", 2)]
    if METHODS[method].needs != "none":
        assert result["cost"]["source_bytes"] == 2 * 3 * 224 * 224
    for name, value in METHODS[method].Config.published.get("imagenet-c", {}).items():
        if name not in LEAN:
            assert result["config"][name] == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("method", TRANSFORMERS)
def test_transformer_methods_on_imagenet_c(method: str, imagenet: Path, tmp_path: Path) -> None:
    """ViT-B/16 in timm's key names; half precision, to be small."""
    weights = tmp_path / "model.safetensors"
    save_weights(create("vit-b16-224", num_classes=1000).half(), weights)
    call = [*imagenet_call(imagenet)[:8], "--backbone", "vit-b16-224", "--weights", str(weights)]
    source = imagenet / "train"
    result = run(method, *call, "--samples", 2, source=source, out=tmp_path / "run")
    weights.unlink()
    assert [(d["name"], d["samples"]) for d in result["domains"]] == [("fog", 2)]
    assert result["input"]["size"] == 224


def test_the_two_preprocessings_are_named_recorded_and_kept_apart(
    imagenet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {
        name: run("tent", *imagenet_call(imagenet, name), out=tmp_path / "runs" / name)
        for name in ("imagenet-c", "imagenet-c-resized")
    }
    plain, resized = results["imagenet-c"], results["imagenet-c-resized"]
    assert plain["data"]["preprocessing"] == "none, uint8 / 255"
    assert resized["data"]["preprocessing"] == "resize256-crop224, uint8 / 255"
    assert plain["config"] == resized["config"]  # the published settings of ImageNet-C, both
    assert plain["config"]["lr"] == 2.5e-4
    # 3 images in batches of 2: the short last batch is kept.
    assert [d["samples"] for d in resized["domains"]] == [3]
    assert len((tmp_path / "runs/imagenet-c/batches.jsonl").read_text().splitlines()) == 2
    capsys.readouterr()
    main(["compare", str(tmp_path / "runs")])
    said = capsys.readouterr().out
    assert "imagenet-c, resnet18, severity 5" in said
    assert "imagenet-c-resized, resnet18, severity 5" in said


def test_a_part_of_imagenets_classes_needs_a_list_of_all(imagenet: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(imagenet / "ImageNet-C", part)
    (part / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"3 classes, but ImageNet has 1,000.*classes\.txt"):
        find_benchmark("imagenet-c").open(part)


def test_what_the_two_preprocessings_do(imagenet: Path) -> None:
    folder = imagenet / "ImageNet-C"
    file = folder / "fog" / "5" / WNIDS[1] / "ILSVRC2012_val_00000001.JPEG"
    with Image.open(file) as opened:
        decoded = opened.convert("RGB")
    enlarged = decoded.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    for benchmark, expected in (("imagenet-c", decoded), ("imagenet-c-resized", enlarged)):
        images = find_benchmark(benchmark).open(folder)
        _, labels = images.load("fog", 5, np.arange(3))
        x, _ = images.load("fog", 5, np.flatnonzero(labels.numpy() == 1))
        pixels = x[0].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(pixels, np.asarray(expected, np.float32) / np.float32(255))


def test_five_thousand_images_in_79_batches(tmp_path: Path) -> None:
    """The protocol at its real length: the list, the shuffle by the seed, the batch of 8."""
    packed = io.BytesIO()
    Image.new("RGB", (4, 4)).save(packed, "JPEG")
    for n in range(5100):
        place = tmp_path / "fog" / "5" / WNIDS[n % 3] / f"ILSVRC2012_val_{n:08}.JPEG"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(packed.getvalue())
    images = ImageNetC(tmp_path)
    assert images.size("fog") == 5000  # of 5100
    assert images.describe()["list"] == "the first 5000 by sha256 of wnid/name"
    task = find_benchmark("imagenet-c")

    def order(seed: int) -> NDArray[np.int64]:
        stream = Stream(domains=("fog",), batch_size=task.batch_size, seed=seed)
        batches = [pieces[0].index for pieces in stream.plan({"fog": images.size("fog")})]
        assert [len(batch) for batch in batches] == [64] * 78 + [8]
        return np.concatenate(batches)

    first = order(1)
    assert sorted(first) == list(range(5000))
    assert (first == order(1)).all()
    assert (first != order(2)).any()
    assert (first != np.sort(first)).any()
    x, _ = images.load("fog", 5, first[-8:])
    assert x.shape == (8, 3, 4, 4)
    # RobustBench's list, put beside the corruptions, is taken by itself.
    chosen = [f"{WNIDS[n % 3]}/ILSVRC2012_val_{n:08}.JPEG" for n in (7, 3, 5)]
    (tmp_path / "imagenet_test_image_ids.txt").write_text("\n".join(chosen))
    listed = ImageNetC(tmp_path)
    assert listed.load("fog", 5, np.arange(3))[1].tolist() == [1, 0, 2]
    assert listed.describe()["list"] == "imagenet_test_image_ids.txt"


# --- training images as class folders --------------------------------------------------------


def test_training_images_are_numbered_as_the_test_images(imagenet: Path) -> None:
    batches = FolderBatches(
        imagenet / "train", 1, class_names=WNIDS, classes=1000, size=(256, 224), seed=3
    )
    assert len(batches) == 2
    read = {int(y): x for x, y in batches}
    assert set(read) == {1, 2}  # the tree's second and third class, though it has only these two
    with Image.open(imagenet / "train" / WNIDS[2] / f"{WNIDS[2]}_1.JPEG") as opened:
        scaled = opened.resize((340 * 256 // 280, 256), Image.Resampling.BILINEAR)
    left = round((scaled.width - 224) / 2)
    expected = np.asarray(scaled.crop((left, 16, left + 224, 240)), np.float32) / np.float32(255)
    np.testing.assert_array_equal(read[2][0].permute(1, 2, 0).numpy(), expected)
    again = [int(y) for _, y in batches]
    assert again == [int(y) for _, y in batches]  # the same order each time


def test_own_images_have_own_training_images(tmp_path: Path) -> None:
    for number, name in enumerate(("night/wasp", "night/bee", "night/fly", "train/fly")):
        place = tmp_path / ("images" if name.startswith("night") else "") / name
        place.mkdir(parents=True)
        for copy in range(2):
            picture(32, 32, seed=2 * number + copy).save(place / f"{copy}.png")
    weights = tmp_path / "wrn.safetensors"
    save_weights(create("wrn-10-1", num_classes=3), weights)
    call = ["--benchmark", "folder", "--data", tmp_path / "images", "--backbone", "wrn-10-1"]
    result = run(
        "rmt-free", *call, "--weights", weights, source=tmp_path / "train", out=tmp_path / "run"
    )
    assert result["source_access"] == "labels"
    assert result["cost"]["source_bytes"] == 2 * 3 * 32 * 32


def test_wrong_training_folders(imagenet: Path, tmp_path: Path) -> None:
    train = imagenet / "train"
    with pytest.raises(DataError, match=r"no folder .*nowhere of training images"):
        FolderBatches(tmp_path / "nowhere", 2)
    with pytest.raises(DataError, match="holds no images as class/image"):
        FolderBatches(tmp_path, 2)
    with pytest.raises(DataError, match=r"n02105855 is of none of the 1 classes"):
        FolderBatches(train, 2, class_names=WNIDS[1:2])
    with pytest.raises(DataError, match=r"2 class folders, but the task has 1000.*classes\.txt"):
        FolderBatches(train, 2, classes=1000)
    with pytest.raises(DataError, match=r"bring them all to one size"):
        list(FolderBatches(train, 2))
    own = tmp_path / "own"
    for wnid in WNIDS[1:]:
        (own / wnid).mkdir(parents=True)
        picture(8, 8, 0).save(own / wnid / "a.png")
    assert {int(y) for _, y in FolderBatches(own, 1)} == {0, 1}
    (own / "classes.txt").write_text("\n".join(WNIDS))
    assert {int(y) for _, y in FolderBatches(own, 1, classes=1000)} == {1, 2}


def test_warm_up_on_class_folders(imagenet: Path, tmp_path: Path) -> None:
    network = imagenet_call(imagenet)
    warm = tmp_path / "warm.safetensors"
    main([
        "warmup", "--benchmark", "imagenet-c", *network[-4:], "--data", str(imagenet / "train"),
        "--batch-size", "2", "--device", "cpu", "--out", str(warm), "--set", "codes=16",
        "feature_queue=64", "sample_queue=64", "warmup_rounds=1",
    ])  # fmt: skip
    result = run("bee", *network, "--samples", 2, source=warm, out=tmp_path / "run")
    assert result["source_access"] == "samples"
    assert not [e for e in result["events"] if e["event"] == "source-free"]


# --- the large networks ----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "first"), [("resnet50", 2), ("vit-b16-224", 1)])
def test_bee_steps_and_replays_on_large_networks(name: str, first: int) -> None:
    """At 224 px, batch 4, with the real 1000 classes; one view and no inner step, to be quick."""
    torch.manual_seed(0)
    model = create(name, num_classes=1000)
    bee = find_method("bee")
    config = bee.Config.for_benchmark(
        "imagenet-c", "vit" if name.startswith("vit") else "cnn", replay="weighted", replay_every=1,
        adapts="shallow", codes=8, feature_queue=8, sample_queue=4, anchors=2, complementary=1,
        inner_steps=0, views="one", student_view="none",
    )  # fmt: skip
    adapter = bee(model, config)
    x = torch.rand(4, 3, 224, 224)
    adapter(x[:first])  # the first batch only opens the stream: nothing to go back to yet
    before = {n: p.clone() for n, p in adapter.model.named_parameters() if p.requires_grad}
    logits = adapter(x)
    assert logits.shape == (4, 1000)
    assert logits.isfinite().all()
    (replay,) = [event for event in adapter.last.events if event["event"] == "replay"]
    assert replay["anchors"] == [0]
    now = dict(adapter.model.named_parameters())
    assert any(not torch.equal(now[n], value) for n, value in before.items())
    total = sum(p.numel() for p in model.parameters())
    assert 0 < sum(p.numel() for p in before.values()) < total / 2  # the shallow blocks alone
