"""Files into networks: what is accepted, what is said about it, what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from bombus.backbones import Backbone, create
from bombus.backbones.resnext import ResNeXt29
from bombus.backbones.vit import VisionTransformer
from bombus.backbones.weights import load_weights, save_weights, state_sha256
from bombus.errors import WeightsError

SHARED = Path(__file__).parents[2].parent / "shared"
needs_shared = pytest.mark.skipif(
    not (SHARED / "weights").is_dir(), reason="the folder `shared` beside the repository is absent"
)


def small(seed: int = 0, num_classes: int = 10) -> Backbone:
    torch.manual_seed(seed)
    return create("wrn-10-1", num_classes=num_classes)


def tiny_vit(size: int = 8) -> VisionTransformer:
    return VisionTransformer(size=size, patch=2, width=8, depth=2, heads=2, num_classes=3)


def state_of(model: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    return {prefix + key: value.clone() for key, value in model.state_dict().items()}


@pytest.fixture
def source() -> Backbone:
    return small(1)


def same(a: nn.Module, b: nn.Module) -> bool:
    return state_sha256(a) == state_sha256(b)


# --- what loads ------------------------------------------------------------------------------


def test_saved_weights_come_back(source: Backbone, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_weights(source, file)
    model = small(2)
    loaded = load_weights(model, file)
    assert same(model, source)
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]  # no temporary file stays


def test_saving_twice_gives_the_same_bytes(source: Backbone, tmp_path: Path) -> None:
    save_weights(source, tmp_path / "a.safetensors")
    save_weights(source, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_failed_save_leaves_the_old_file(
    source: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"old")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("bombus.backbones.weights.os.fsync", full)
    with pytest.raises(WeightsError, match="no space left"):
        save_weights(source, file)
    assert file.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_saving_tied_weights(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_weights(model, tmp_path / "w.safetensors")
    before = state_sha256(model)
    load_weights(model, tmp_path / "w.safetensors")
    assert state_sha256(model) == before


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pth.tar", ".bin"])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_torch_files(source: Backbone, tmp_path: Path, suffix: str, wrapper: str | None) -> None:
    state: dict[str, Any] = dict(state_of(source))
    if wrapper:
        state = {"epoch": 3, wrapper: state, "optimizer": {"lr": 0.1}}
    torch.save(state, tmp_path / f"w{suffix}")
    model = small(2)
    loaded = load_weights(model, tmp_path / f"w{suffix}")
    assert same(model, source)
    if wrapper:
        assert f"took {wrapper!r} of the file, left optimizer" in loaded.notes


@pytest.mark.parametrize(
    "prefix", ["module.", "model.", "net.", "module.model.", "_orig_mod.module."]
)
def test_prefixes(source: Backbone, tmp_path: Path, prefix: str) -> None:
    torch.save({"state_dict": state_of(source, prefix)}, tmp_path / "w.pt")
    model = small(2)
    loaded = load_weights(model, tmp_path / "w.pt")
    assert same(model, source)
    assert any("stripped the prefix" in note for note in loaded.notes)


def test_a_prefix_not_common_to_all_stays(source: Backbone, tmp_path: Path) -> None:
    state = state_of(source, "module.")
    state["fc.bias"] = state.pop("module.fc.bias")
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"unexpected \(module\.conv1\.weight"):
        load_weights(small(), tmp_path / "w.pt")


def test_a_model_whose_own_names_begin_so(tmp_path: Path) -> None:
    model = nn.ModuleDict({"model": nn.Linear(2, 2)})
    torch.save(state_of(model), tmp_path / "w.pt")
    assert load_weights(model, tmp_path / "w.pt").notes == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_cast(source: Backbone, tmp_path: Path, dtype: torch.dtype) -> None:
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state_of(source).items()}
    save_file(state, tmp_path / "w.safetensors")
    model = small(2)
    loaded = load_weights(model, tmp_path / "w.safetensors")
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert torch.equal(model.state_dict()["fc.weight"], state["fc.weight"].float())
    assert loaded.notes == (f"cast {str(dtype)[6:]} weights to the model's own type",)


def test_the_unused_copy_of_block1_is_left_out(source: Backbone, tmp_path: Path) -> None:
    state = state_of(source)
    state |= {f"sub_{k}": v for k, v in state.items() if k.startswith("block1.")}
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pt")
    model = small(2)
    notes = load_weights(model, tmp_path / "w.pt").notes
    assert same(model, source)
    assert any("unused weights sub_block1.*" in note for note in notes)
    state["sub_block2.x"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"1 unexpected \(sub_block2\.x\)"):
        load_weights(model, tmp_path / "w.pt")


def test_old_files_without_counters(source: Backbone, tmp_path: Path) -> None:
    state = {k: v for k, v in state_of(source).items() if "num_batches_tracked" not in k}
    torch.save(state, tmp_path / "w.pt")
    notes = load_weights(small(2), tmp_path / "w.pt").notes
    assert notes == ("kept 7 num_batches_tracked counters the file does not hold",)


def test_positions_are_resized(tmp_path: Path) -> None:
    source, model = tiny_vit(8), tiny_vit(16)
    constant = torch.arange(8.0).expand(1, 17, 8).clone()  # the same everywhere: no resize moves it
    source.pos_embed.data = constant
    save_weights(source, tmp_path / "w.safetensors")
    notes = load_weights(model, tmp_path / "w.safetensors").notes
    assert "resized position embeddings from 16 to 64 patches" in notes
    assert torch.allclose(model.pos_embed, torch.arange(8.0).expand(1, 65, 8), atol=1e-5)
    assert model.input.size == 16


# --- normalisation ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"), [("mu", "sigma"), ("normalize.mean", "normalize.std")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_files_normalisation_is_the_models_own(
    tmp_path: Path, first: str, second: str, dtype: torch.dtype
) -> None:
    model = ResNeXt29(num_classes=4)
    state = state_of(model, "model.")
    state |= {first: torch.full((1, 3, 1, 1), 0.5, dtype=dtype)}
    state |= {second: torch.full((1, 3, 1, 1), 0.5, dtype=dtype)}
    torch.save(state, tmp_path / "w.pt")
    before = model.input
    notes = load_weights(model, tmp_path / "w.pt").notes
    assert model.input == before
    assert any("is the model's own" in note for note in notes)


def test_the_files_normalisation_wins(source: Backbone, tmp_path: Path) -> None:
    state = state_of(source)
    state["mu"] = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
    state["sigma"] = torch.tensor([0.2471, 0.2435, 0.2616]).view(1, 3, 1, 1)
    torch.save(state, tmp_path / "w.pt")
    model = small(2)
    notes = load_weights(model, tmp_path / "w.pt").notes
    assert model.input.mean == (0.4914, 0.4822, 0.4465)
    assert model.input.std == (0.2471, 0.2435, 0.2616)
    assert any("now normalised as the file says" in note for note in notes)
    # Our own files keep it, and a plain model learns it from them.
    save_weights(model, tmp_path / "w.safetensors")
    again = small(3)
    load_weights(again, tmp_path / "w.safetensors")
    assert again.input == model.input
    # And the other way round: no normalisation is said too.
    save_weights(source, tmp_path / "plain.safetensors")
    load_weights(again, tmp_path / "plain.safetensors")
    assert again.input == source.input


def test_normalisation_for_another_range_is_refused(source: Backbone, tmp_path: Path) -> None:
    state = state_of(source) | {"mean": torch.full((3,), 123.0), "std": torch.full((3,), 58.0)}
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"channels in \[0, 1\]"):
        load_weights(small(), tmp_path / "w.pt")


def test_a_model_without_input_does_not_lose_normalisation(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1))
    state = state_of(model) | {"mu": torch.zeros(1, 3, 1, 1), "sigma": torch.ones(1, 3, 1, 1)}
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"2 unexpected \(mu, sigma\)"):
        load_weights(model, tmp_path / "w.pt")


# --- what does not fit -----------------------------------------------------------------------


def test_mismatch_names_the_nearest_backbone(source: Backbone, tmp_path: Path) -> None:
    save_weights(source, tmp_path / "w.safetensors")
    model = create("wrn-16-1", num_classes=10)
    before = state_sha256(model)
    with pytest.raises(WeightsError) as caught:
        load_weights(model, tmp_path / "w.safetensors")
    said = str(caught.value)
    assert said.startswith(
        "w.safetensors does not fit wrn-16-1; weights 36 missing (block1.layer.1"
    )
    assert said.endswith("the file fits 'wrn-10-1' with 10 classes.")
    assert state_sha256(model) == before


def test_mismatch_of_classes(source: Backbone, tmp_path: Path) -> None:
    save_weights(source, tmp_path / "w.safetensors")
    with pytest.raises(
        WeightsError,
        match=r"2 of another shape \(fc\.weight is \(10, 64\) instead of \(100, 64\).*10 classes",
    ):
        load_weights(small(num_classes=100), tmp_path / "w.safetensors")


def test_mismatch_of_a_vit_nobody_registered(source: Backbone, tmp_path: Path) -> None:
    save_weights(tiny_vit(), tmp_path / "w.safetensors")
    with pytest.raises(
        WeightsError, match="fits a VisionTransformer of patch 2, width 8, depth 2, 8 px with 3"
    ):
        load_weights(source, tmp_path / "w.safetensors")


def test_mismatch_with_nothing_near(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"1 unexpected \(w\)\.$"):
        load_weights(small(), tmp_path / "w.pt")


def test_values_that_are_not_finite(source: Backbone, tmp_path: Path) -> None:
    state = state_of(source)
    state["fc.bias"][0] = float("nan")
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"'fc\.bias' that are not finite"):
        load_weights(small(), tmp_path / "w.pt")


# --- shards ----------------------------------------------------------------------------------


def shards(model: nn.Module, folder: Path) -> list[Path]:
    state = state_of(model)
    files = [folder / f"w-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for file, keys in zip(files, (list(state)[:5], list(state)[5:]), strict=True):
        save_file({key: state[key] for key in keys}, file)
    return files


def test_a_shard_finds_its_siblings(source: Backbone, tmp_path: Path) -> None:
    files = shards(source, tmp_path)
    both = "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    for given in (files, files[0], files[1], files[1:]):
        model = small(2)
        assert load_weights(model, given).sha256 == hashlib.sha256(both.encode()).hexdigest()
        assert same(model, source)


def test_a_missing_shard_is_named(source: Backbone, tmp_path: Path) -> None:
    files = shards(source, tmp_path)
    files[1].unlink()
    with pytest.raises(WeightsError, match=r"there is no w-00002-of-00002\.safetensors"):
        load_weights(small(), files[0])


def test_two_files_with_the_same_weights(source: Backbone, tmp_path: Path) -> None:
    for name in "ab":
        save_weights(source, tmp_path / f"{name}.safetensors")
    with pytest.raises(WeightsError, match="an earlier file held already"):
        load_weights(small(), [tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


# --- files that are not weights --------------------------------------------------------------


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("protocol", [None, 2])
def test_code_in_a_pickle_never_runs(tmp_path: Path, protocol: int | None) -> None:
    file, mark = tmp_path / "w.pt", tmp_path / "executed"
    if protocol:
        file.write_bytes(pickle.dumps({"state_dict": Evil(mark)}, protocol))
    else:
        torch.save({"state_dict": Evil(mark)}, file)
    with pytest.raises(WeightsError) as caught:
        load_weights(small(), file)
    assert not mark.exists()
    assert "mkdir" in str(caught.value)
    assert "was not opened" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nor_in_a_pickle_torch_does_not_even_recognise(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(pickle.dumps(Evil(tmp_path / "executed"), 4))
    with pytest.raises(WeightsError, match="is not a weights file that torch can read"):
        load_weights(small(), tmp_path / "w.pt")
    assert not (tmp_path / "executed").exists()


def test_a_whole_pickled_model_is_refused(source: Backbone, tmp_path: Path) -> None:
    torch.save(source, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="holds Python objects besides tensors"):
        load_weights(small(), tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("w.safetensors", b"", "is empty"),
        ("w.pt", b"", "is empty"),
        ("w.safetensors", b"hello, world", "is not a whole safetensors file"),
        ("w.pt", b"hello, world", "is not a weights file that torch can read"),
        ("w.pth", b"PK\x03\x04 not a zip", "is not a weights file that torch can read"),
        ("w.txt", b"hello", r"is not a weights file; expected \.safetensors"),
    ],
)
def test_files_that_are_not_weights(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=said) as caught:
        load_weights(small(), tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_truncated(source: Backbone, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"w{suffix}"
    if suffix == ".pt":
        torch.save(state_of(source), file)
    else:
        save_weights(source, file)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match=r"not a whole safetensors|may be cut short"):
        load_weights(small(), file)


def test_missing_folder_nothing_and_no_state(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="There is no weights file"):
        load_weights(small(), tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="is a folder"):
        load_weights(small(), tmp_path)
    with pytest.raises(WeightsError, match="No weights file was given"):
        load_weights(small(), [])
    torch.save([1, 2, 3], tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="holds no state dict"):
        load_weights(small(), tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"written as \.safetensors"):
        save_weights(small(), tmp_path / "w.pt")


# --- hash ------------------------------------------------------------------------------------


def test_the_hash_sees_every_change_and_no_process() -> None:
    code = (
        "import torch\nfrom bombus.backbones import create\n"
        "from bombus.backbones.weights import state_sha256\n"
        "torch.manual_seed(0)\nprint(state_sha256(create('wrn-10-1', num_classes=10)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    model = small(0)
    assert run.stdout.strip() == state_sha256(model)
    model.get_parameter("fc.bias").data[3] += 1e-6
    assert run.stdout.strip() != state_sha256(model)
    assert state_sha256(small(0).double()) != state_sha256(small(0))
    assert len(state_sha256(small(0).bfloat16())) == 64


# --- the real thing --------------------------------------------------------------------------


def clean_error(model: nn.Module, count: int) -> float:
    folder = SHARED / "data" / "cifar10-c-reference"
    pixels = np.array(Image.open(folder / "clean.png"))[:count].reshape(count, 32, 32, 3)
    labels = torch.tensor(json.loads((folder / "labels.json").read_text())[:count])
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    model.eval()
    with torch.inference_mode():
        wrong = sum(
            (model(a).argmax(1) != b).sum().item()
            for a, b in zip(x.split(100), labels.split(100), strict=True)
        )
    return 100 * wrong / count


# Reference errors of the testbed on the 1,000 clean images. The ViT is slow on a CPU: 300 of them,
# whose error has a standard deviation of 2.2 points about its 16.7 % on all 10,000.
@needs_shared
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "file", "count", "error", "points"),
    [
        ("wrn-16-1", "cifar10-wrn-16-1", 1000, 10.5, 0.3),
        ("wrn-16-2", "cifar10-wrn-16-2", 1000, 8.1, 0.3),
        ("vit-s4-32", "cifar10-vit-s4", 300, 16.7, 5),
    ],
)
def test_source_error(name: str, file: str, count: int, error: float, points: float) -> None:
    model = create(name, num_classes=10)
    load_weights(model, SHARED / "weights" / f"{file}.safetensors")
    assert clean_error(model, count) == pytest.approx(error, abs=points)


@needs_shared
@pytest.mark.shared
def test_the_large_network_in_two_shards() -> None:
    model = create("wrn-28-10", num_classes=10)
    load_weights(model, SHARED / "weights" / "cifar10-wrn-28-10-00001-of-00002.safetensors")
    assert clean_error(model, 20) <= 15


def test_shards_may_lie_in_different_folders_when_all_are_given(tmp_path: Path) -> None:
    model = create("wrn-10-1", num_classes=10)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    names = sorted(state)
    files = []
    for i, part in enumerate((names[:20], names[20:]), start=1):
        folder = tmp_path / str(i)
        folder.mkdir()
        files.append(folder / f"net-{i:05d}-of-00002.safetensors")
        save_file({name: state[name] for name in part}, files[-1])
    other = create("wrn-10-1", num_classes=10)
    load_weights(other, files)
    assert state_sha256(other) == state_sha256(model)
    with pytest.raises(WeightsError, match="there is no net-00002-of-00002"):
        load_weights(other, files[:1])
