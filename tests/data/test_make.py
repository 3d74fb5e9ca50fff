"""make_cifar_c with a stand-in for the generator: what is tested is the files."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import bombus.data
from bombus.data.cifar_c import CifarC
from bombus.data.corruptions import NAMES as PUBLISHED_ORDER
from bombus.data.make import make_cifar_c
from bombus.errors import ConfigError, DataError, UnknownNameError


def rows(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


class Generator(ModuleType):
    """Adds severity, seed, place and the name's rank to each pixel, so that any mix-up shows."""

    STANDARD = PUBLISHED_ORDER[:15]
    EXTRA = PUBLISHED_ORDER[15:]
    NAMES = PUBLISHED_ORDER
    VERSION = 7

    def __init__(self) -> None:
        super().__init__("bombus.data.corruptions")
        self.calls: list[tuple[str, int, int]] = []
        self.fail_at = -1

    def corrupt(
        self,
        images: Tensor,
        name: str,
        severity: int,
        *,
        index: Tensor,
        seed: int = 0,
        constants: str = "cifar",
        frost_photos: Any = None,
    ) -> Tensor:
        assert images.dtype == torch.uint8
        assert images.shape[1:] == (3, 32, 32)
        assert index.dtype == torch.int64
        assert constants == "cifar"
        self.calls.append((name, severity, len(images)))
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        shift = 50 * severity + 100 * seed + 3 * index + PUBLISHED_ORDER.index(name)
        return ((images.long() + shift[:, None, None, None]) % 256).to(torch.uint8)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    generator = Generator()
    monkeypatch.setitem(sys.modules, "bombus.data.corruptions", generator)
    monkeypatch.setattr(bombus.data, "corruptions", generator, raising=False)
    return generator


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """Seven CIFAR-10 test images in the binary layout."""
    folder = tmp_path / "clean"
    folder.mkdir()
    planes = rows(7).transpose(0, 3, 1, 2).reshape(7, -1)
    labels = np.arange(7, dtype=np.uint8)[:, None]
    (folder / "test_batch.bin").write_bytes(np.concatenate([labels, planes], axis=1).tobytes())
    return folder


def expected(name: str, severity: int, seed: int = 0) -> NDArray[np.int64]:
    shift = 50 * severity + 100 * seed + 3 * np.arange(7) + PUBLISHED_ORDER.index(name)
    pixels: NDArray[np.int64] = (rows(7).astype(np.int64) + shift[:, None, None, None]) % 256
    return pixels


def digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.iterdir())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_published_format(generator: Generator, clean: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    out = make_cifar_c(
        clean,
        tmp_path / "deep" / "out",
        batch=3,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert out == tmp_path / "deep" / "out"
    names = {f"{name}.npy" for name in (*generator.STANDARD, "labels")} | {"bombus.json"}
    assert {path.name for path in out.iterdir()} == names
    fog = np.load(out / "fog.npy")
    assert fog.dtype == np.uint8
    assert fog.shape == (35, 32, 32, 3)
    np.testing.assert_array_equal(
        fog, np.concatenate([expected("fog", severity) for severity in range(1, 6)])
    )
    assert np.load(out / "labels.npy").tolist() == list(range(7)) * 5
    assert steps[-1] == (15 * 5 * 7, 15 * 5 * 7)
    assert steps[0] == (3, 15 * 5 * 7)
    images = CifarC(out)
    assert images.domains == generator.STANDARD
    x, y = images.load("snow", 4, np.array([6]))
    np.testing.assert_array_equal(
        (x[0].permute(1, 2, 0) * 255).round().numpy(), expected("snow", 4)[6]
    )
    assert y.tolist() == [6]


def test_one_severity_is_declared(generator: Generator, clean: Path, tmp_path: Path) -> None:
    out = make_cifar_c(clean, tmp_path / "out", severities=(5,), corruptions=["fog"], seed=2)
    np.testing.assert_array_equal(np.load(out / "fog.npy"), expected("fog", 5, seed=2))
    sidecar = json.loads((out / "bombus.json").read_text())
    assert sidecar["severities"] == [5]
    assert sidecar["generator"] == {
        "name": "bombus.data.corruptions",
        "version": 7,
        "constants": "cifar",
        "seed": 2,
        "ice": "drawn",
    }
    assert sidecar["files"]["fog.npy"]["sha256"] == digests(out)["fog.npy"]
    images = CifarC(out)
    assert images.size("fog") == 7
    assert images.load("fog", 5, np.arange(7))[1].tolist() == list(range(7))
    assert images.describe()["generator"]["version"] == 7
    assert str(tmp_path) not in json.dumps(sidecar)


def test_a_broken_off_run_is_taken_up(generator: Generator, clean: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"corruptions": ("fog", "snow"), "severities": (1, 2), "batch": 4}
    whole = digests(make_cifar_c(clean, tmp_path / "whole", **settings))
    generator.calls.clear()
    generator.fail_at = 7  # in the middle of snow
    with pytest.raises(KeyboardInterrupt):
        make_cifar_c(clean, tmp_path / "out", **settings)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"bombus.json", "labels.npy", "fog.npy"}
    assert CifarC(tmp_path / "out").domains == ("fog",)
    generator.calls.clear()
    generator.fail_at = -1
    steps: list[int] = []
    make_cifar_c(clean, tmp_path / "out", progress=lambda d, _: steps.append(d), **settings)
    assert {name for name, _, _ in generator.calls} == {"snow"}
    assert steps == [14, 18, 21, 25, 28]
    assert digests(tmp_path / "out") == whole


def test_damaged_files_are_made_anew(generator: Generator, clean: Path, tmp_path: Path) -> None:
    out = make_cifar_c(clean, tmp_path / "out", corruptions=("fog", "snow", "frost"))
    whole = digests(out)
    (out / "fog.npy").write_bytes((out / "fog.npy").read_bytes()[:-1] + b"?")
    (out / "frost.npy").unlink()
    (out / "labels.npy").write_bytes(b"")
    generator.calls.clear()
    make_cifar_c(clean, out, corruptions=("fog", "snow", "frost"))
    assert {name for name, _, _ in generator.calls} == {"fog", "frost"}
    assert digests(out) == whole


def test_corruptions_can_be_added(generator: Generator, clean: Path, tmp_path: Path) -> None:
    make_cifar_c(clean, tmp_path / "out", corruptions=("saturate",))
    out = make_cifar_c(clean, tmp_path / "out", corruptions=("fog",))
    assert CifarC(out).domains == ("fog", "saturate")
    assert set(json.loads((out / "bombus.json").read_text())["files"]) == {
        "labels.npy",
        "saturate.npy",
        "fog.npy",
    }


def test_other_settings_need_another_folder(
    generator: Generator, clean: Path, tmp_path: Path
) -> None:
    out = make_cifar_c(clean, tmp_path / "out", corruptions=("fog",))
    with pytest.raises(DataError, match="made with seed 0, not 1; choose another folder"):
        make_cifar_c(clean, out, corruptions=("fog",), seed=1)
    with pytest.raises(DataError, match=r"made with generator .*drawn.*, not .*photographs"):
        make_cifar_c(clean, out, corruptions=("fog",), frost_photos=tmp_path)
    with pytest.raises(DataError, match=r"made with severities \[1, 2, 3, 4, 5\], not \[5\]"):
        make_cifar_c(clean, out, severities=(5,))
    content = bytearray((clean / "test_batch.bin").read_bytes())
    content[-1] ^= 1
    (clean / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match="made with clean_sha256"):
        make_cifar_c(clean, out, corruptions=("fog",))
    foreign = tmp_path / "published"
    foreign.mkdir()
    np.save(foreign / "fog.npy", rows(5))
    with pytest.raises(DataError, match="files that bombus did not make"):
        make_cifar_c(clean, foreign)


@pytest.mark.parametrize("severities", [(), (0,), (6,), (5, 5)])
def test_impossible_severities(
    generator: Generator, clean: Path, tmp_path: Path, severities: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match="must be some of 1 to 5, each once"):
        make_cifar_c(clean, tmp_path / "out", severities=severities)


def test_other_impossible_settings(generator: Generator, clean: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UnknownNameError, match="corruption named 'frog'; did you mean 'fog'"):
        make_cifar_c(clean, out, corruptions=("frog",))
    with pytest.raises(ConfigError, match="at least one is needed and none twice"):
        make_cifar_c(clean, out, corruptions=())
    with pytest.raises(ConfigError, match="batch is 0"):
        make_cifar_c(clean, out, batch=0)
    with pytest.raises(UnknownNameError, match="variant"):
        make_cifar_c(clean, out, variant="cifar10")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="bombus data get cifar10"):
        make_cifar_c(tmp_path / "nowhere", out)
    assert not out.exists()


def test_cifar100(generator: Generator, tmp_path: Path) -> None:
    planes = rows(2).transpose(0, 3, 1, 2).reshape(2, -1)
    labels = np.array([[19, 99], [0, 3]], np.uint8)
    (tmp_path / "test.bin").write_bytes(np.concatenate([labels, planes], axis=1).tobytes())
    out = make_cifar_c(tmp_path, tmp_path / "out", variant="cifar100-c", corruptions=("fog",))
    assert CifarC(out, "cifar100-c").load("fog", 1, np.arange(2))[1].tolist() == [99, 3]


def test_with_the_real_generator(clean: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"severities": (5,), "corruptions": ("gaussian_noise", "fog")}
    once = make_cifar_c(clean, tmp_path / "once", **settings)
    batches = make_cifar_c(clean, tmp_path / "batches", batch=2, **settings)
    assert digests(once) == digests(batches)
    assert CifarC(once).domains == ("gaussian_noise", "fog")
