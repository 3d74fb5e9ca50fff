"""CifarC on small files in the published format."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bombus.data.cifar_c import CifarC
from bombus.data.images import ImageSet
from bombus.errors import DataError, UnknownNameError


def rows(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def cifar_c(tmp_path: Path) -> Path:
    """Four images a severity, five severities, two corruptions and a strange one."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for seed, name in enumerate(("fog", "gaussian_noise", "ageing")):
        np.save(folder / f"{name}.npy", rows(20, seed))
    np.save(folder / "labels.npy", np.tile(np.array([3, 8, 8, 0], np.uint8), 5))
    return folder


def test_severities_are_slices_of_the_file(cifar_c: Path) -> None:
    images: ImageSet = CifarC(cifar_c)
    assert images.name == "cifar10-c"
    assert images.classes == 10
    assert images.domains == ("gaussian_noise", "fog", "ageing")
    assert images.size("fog") == 4
    for severity in range(1, 6):
        x, y = images.load("fog", severity, np.array([3, 0]))
        expected = rows(20, seed=0)[[4 * severity - 1, 4 * severity - 4]]
        assert x.shape == (2, 3, 32, 32)
        assert x.dtype == torch.float32
        assert x.is_contiguous()
        np.testing.assert_array_equal(
            x.permute(0, 2, 3, 1).numpy(), expected.astype(np.float32) / np.float32(255)
        )
        assert y.dtype == torch.int64
        assert y.tolist() == [0, 3]


def test_it_survives_pickling_without_its_pixels(cifar_c: Path) -> None:
    images = CifarC(cifar_c)
    stored = pickle.dumps(images)
    assert len(stored) < 2000
    x, _ = pickle.loads(stored).load("fog", 5, np.arange(4))  # noqa: S301 - our own
    assert torch.equal(x, images.load("fog", 5, np.arange(4))[0])


def test_an_empty_index_gives_an_empty_batch(cifar_c: Path) -> None:
    x, y = CifarC(cifar_c).load("fog", 1, np.array([], np.int64))
    assert x.shape == (0, 3, 32, 32)
    assert y.shape == (0,)


@pytest.mark.parametrize("index", [[-1], [4], [0, 99]])
def test_index_out_of_range(cifar_c: Path, index: list[int]) -> None:
    with pytest.raises(DataError, match="it has images 0 to 3"):
        CifarC(cifar_c).load("fog", 1, np.array(index))


def test_unknown_and_absent_domains(cifar_c: Path) -> None:
    images = CifarC(cifar_c)
    with pytest.raises(DataError, match=r"'snow' is not in .*CIFAR-10-C, which holds: gaussian"):
        images.size("snow")
    with pytest.raises(UnknownNameError, match="did you mean 'fog'"):
        images.load("frog", 5, np.array([0]))


@pytest.mark.parametrize("severity", [0, 6])
def test_severity_out_of_range(cifar_c: Path, severity: int) -> None:
    with pytest.raises(DataError, match=f"1, 2, 3, 4, 5, but severity {severity} was asked"):
        CifarC(cifar_c).load("fog", severity, np.array([0]))


def test_missing_folder_and_files(cifar_c: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*nowhere.* `bombus data make cifar10-c`"):
        CifarC(cifar_c / "nowhere")
    images = CifarC(cifar_c)
    (cifar_c / "fog.npy").unlink()
    with pytest.raises(DataError, match=r"fog\.npy has gone missing"):
        images.load("fog", 5, np.array([0]))
    for path in cifar_c.glob("*[!s].npy"):
        path.unlink()
    with pytest.raises(DataError, match=r"no corruption file such as gaussian_noise\.npy"):
        CifarC(cifar_c)
    (cifar_c / "labels.npy").unlink()
    with pytest.raises(DataError, match=r"labels\.npy is missing"):
        CifarC(cifar_c)


def test_hidden_and_other_files_are_left_alone(cifar_c: Path) -> None:
    (cifar_c / ".fog.npy.x1").write_bytes(b"half")
    (cifar_c / "._fog.npy").write_bytes(b"what some systems leave behind")
    (cifar_c / "README.txt").write_text("hello")
    assert CifarC(cifar_c).domains == ("gaussian_noise", "fog", "ageing")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((20, 32, 32, 3), np.float32),
        np.zeros((20, 3, 32, 32), np.uint8),
        np.zeros((19, 32, 32, 3), np.uint8),
    ],
)
def test_wrong_dtype_or_shape(cifar_c: Path, array: np.ndarray) -> None:
    np.save(cifar_c / "fog.npy", array)
    with pytest.raises(DataError, match=r"fog\.npy is \w+ \(.*asks for uint8 \(20, 32, 32, 3\)"):
        CifarC(cifar_c)


def test_truncated_empty_and_pickled_files(cifar_c: Path) -> None:
    path = cifar_c / "fog.npy"
    whole = path.read_bytes()
    evil = np.array([{"a": 1}], dtype=object)
    for broken in (whole[:-1], whole[:40], b"", b"not numpy at all"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"fog\.npy is not a complete \.npy file"):
            CifarC(cifar_c)
    np.save(path, evil, allow_pickle=True)
    with pytest.raises(DataError, match=r"fog\.npy is not a complete \.npy file"):
        CifarC(cifar_c)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (np.full(20, 10), "labels from 10 to 10, but cifar10-c has classes 0 to 9"),
        (np.full(20, -1), "labels from -1 to -1"),
        (np.zeros(19, np.int64), "19 rows, which are not 5 severities of equal length"),
        (np.zeros(20), r"float64 \(20,\), not a row of whole numbers"),
        (np.zeros((20, 1), np.int64), "not a row of whole numbers"),
        (np.zeros(0, np.int64), "not a row of whole numbers"),
        (np.arange(20) % 10, r"does not repeat the same labels .* need a bombus\.json"),
    ],
)
def test_wrong_labels(cifar_c: Path, labels: np.ndarray, sentence: str) -> None:
    np.save(cifar_c / "labels.npy", labels)
    with pytest.raises(DataError, match=sentence):
        CifarC(cifar_c)


def test_cifar100_c_has_a_hundred_classes(cifar_c: Path) -> None:
    np.save(cifar_c / "labels.npy", np.tile([99, 0, 50, 7], 5))
    images = CifarC(cifar_c, "cifar100-c")
    assert images.classes == 100
    assert images.load("fog", 2, np.array([0]))[1].tolist() == [99]
    with pytest.raises(UnknownNameError, match="did you mean 'cifar100-c'"):
        CifarC(cifar_c, "cifar100c")  # type: ignore[arg-type]


def declare(folder: Path, **content: object) -> None:
    (folder / "bombus.json").write_text(json.dumps(content))


def test_a_declared_severity_is_the_only_one(cifar_c: Path) -> None:
    np.save(cifar_c / "labels.npy", np.arange(20) % 10)
    declare(cifar_c, variant="cifar10-c", severities=[5], generator={"version": 1})
    images = CifarC(cifar_c)
    assert images.size("fog") == 20
    x, y = images.load("fog", 5, np.array([19]))
    np.testing.assert_array_equal((x[0].permute(1, 2, 0) * 255).round().numpy(), rows(20)[19])
    assert y.tolist() == [9]
    assert images.describe()["generator"] == {"version": 1}
    with pytest.raises(DataError, match="holds severity 5, but severity 3 was asked for"):
        images.load("fog", 3, np.array([0]))


@pytest.mark.parametrize("listed", [None, [], [0], [6], [5, 5], ["5"], [True], 5])
def test_a_sidecar_with_impossible_severities(cifar_c: Path, listed: object) -> None:
    declare(cifar_c, variant="cifar10-c", severities=listed)
    with pytest.raises(DataError, match="lists the severities"):
        CifarC(cifar_c)


def test_other_broken_sidecars(cifar_c: Path) -> None:
    declare(cifar_c, variant="cifar100-c", severities=[5])
    with pytest.raises(DataError, match="holds 'cifar100-c', not 'cifar10-c'"):
        CifarC(cifar_c)
    (cifar_c / "bombus.json").write_text("{")
    with pytest.raises(DataError, match=r"bombus\.json cannot be read"):
        CifarC(cifar_c)
    (cifar_c / "bombus.json").write_text("[]")
    with pytest.raises(DataError, match="does not describe a data set"):
        CifarC(cifar_c)


def test_describe_knows_changed_files_and_no_absolute_paths(cifar_c: Path) -> None:
    before = CifarC(cifar_c).describe()
    text = json.dumps(before)
    assert str(cifar_c.parent) not in text
    assert before["folder"] == "CIFAR-10-C"
    assert before["generator"] == "as published"
    assert before["images"] == 4
    changed = rows(20, 0)
    changed[-1, -1, -1, -1] ^= 1
    np.save(cifar_c / "fog.npy", changed)
    after = CifarC(cifar_c).describe()
    differ = [k for k, v in before["fingerprints"].items() if after["fingerprints"][k] != v]
    assert differ == ["fog.npy"]
