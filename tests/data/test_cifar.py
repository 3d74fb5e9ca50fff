"""load_cifar on small files of every published layout, faithful to the byte."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from bombus.data.cifar import load_cifar
from bombus.errors import DataError, UnknownNameError


def rows(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def write_binary(path: Path, images: NDArray[np.uint8], *labels: NDArray[Any]) -> None:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    columns = [label.astype(np.uint8)[:, None] for label in labels]
    path.write_bytes(np.concatenate([*columns, planes], axis=1).tobytes())


def python2_pickle(images: NDArray[np.uint8], labels: list[int], key: str = "labels") -> bytes:
    """Opcode by opcode what Python 2's cPickle wrote into the official files, protocol 2."""

    def text(value: str) -> bytes:  # SHORT_BINSTRING
        return b"U" + bytes([len(value)]) + value.encode()

    def whole(value: int) -> bytes:  # BININT2
        return b"M" + struct.pack("<H", value)

    raw = images.transpose(0, 3, 1, 2).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + (b"cnumpy\nndarray\n" + whole(0) + b"\x85" + text("b") + b"\x87R")
        + (b"(" + whole(1) + whole(len(images)) + whole(3072) + b"\x86")
        + (b"cnumpy\ndtype\n" + text("u1") + whole(0) + whole(1) + b"\x87R")
        + (b"(" + whole(3) + text("|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + whole(0) + b"tb")
        + (b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb")
    )
    listed = b"](" + b"".join(whole(label) for label in labels) + b"e"
    return (
        (b"\x80\x02}q\x01(" + text("batch_label") + text("testing batch 1 of 1"))
        + (text(key) + listed + text("data") + array + text("filenames") + b"](")
        + (b"".join(text(f"image_{n}.png") for n in range(len(images))) + b"eu.")
    )


def test_official_pickles_are_read(tmp_path: Path) -> None:
    images = rows(10)
    below = tmp_path / "cifar-10-batches-py"
    below.mkdir()
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        content = python2_pickle(images[part], [number, 9 - number])
        (below / f"data_batch_{number + 1}").write_bytes(content)
    (below / "test_batch").write_bytes(python2_pickle(images[:3], [3, 8, 8]))
    read, labels = load_cifar(tmp_path, "train")
    np.testing.assert_array_equal(read, images)
    assert labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    read, labels = load_cifar(below, "test")
    np.testing.assert_array_equal(read, images[:3])
    assert read.dtype == np.uint8
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 8, 8]


def test_our_fake_pickle_is_what_numpy_itself_would_read() -> None:
    images = rows(2)

    class Numpy(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            if name == "dtype":  # newer numpy wants a bool where the files have 0
                return lambda code, align, copy: np.dtype(code, bool(align), bool(copy))
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)

    content = Numpy(io.BytesIO(python2_pickle(images, [1, 2])), encoding="bytes").load()
    flat = images.transpose(0, 3, 1, 2).reshape(2, 3072)
    np.testing.assert_array_equal(content[b"data"], flat)
    assert content[b"labels"] == [1, 2]


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickles_written_again_by_python_3_are_read(
    tmp_path: Path, protocol: int, order: str
) -> None:
    images = rows(3)
    flat = np.array(images.transpose(0, 3, 1, 2).reshape(3, 3072), order=order)  # type: ignore[call-overload]
    content = {"data": flat, "fine_labels": [99, 0, 5], "coarse_labels": [19, 0, 1]}
    (tmp_path / "test").write_bytes(pickle.dumps(content, protocol))
    read, labels = load_cifar(tmp_path, "test", "cifar100")
    np.testing.assert_array_equal(read, images)
    assert labels.tolist() == [99, 0, 5]


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": [0]}, 2))
    with pytest.raises(DataError, match=r"test_batch is not a CIFAR pickle.* asks for \w+\.system"):
        load_cifar(tmp_path, "test")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "was not read"),
        (b"hello", "was not read"),
        (python2_pickle(rows(2), [1, 2])[:-2000], "was not read"),
        (pickle.dumps([1, 2]), "it holds no dict"),
        (pickle.dumps({"data": rows(1), "labels": [0]}, 2), "not an array of uint8 rows of 3072"),
        (pickle.dumps({"data": np.zeros((1, 3072)), "labels": [0]}, 2), "not an array of uint8"),
        (pickle.dumps({"data": "", "labels": [0]}, 2), "not an array of uint8"),
        (pickle.dumps({"data": 0}, 2), "labels are not a list"),
        (pickle.dumps({"data": 0, "labels": ["cat"]}, 2), "labels are not a list"),
        (pickle.dumps({"data": 0, "labels": [2**20]}, 2), "labels are not a list"),
        (b"\x80\x02cnumpy\ndtype\n}b.", "was not read"),  # tries to change the stand-in itself
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.", "written as"),
    ],
    ids=range(12),
)
def test_damaged_pickles_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        load_cifar(tmp_path, "test")


def test_any_damage_gives_our_error_or_images(tmp_path: Path) -> None:
    whole = python2_pickle(rows(1), [1])
    pixels = whole.index(rows(1).transpose(0, 3, 1, 2).tobytes())
    places = np.r_[:pixels, pixels + 3072 : len(whole)]  # all but the pixels
    draw = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(whole)
        for place in draw.choice(places, draw.integers(1, 4)):
            damaged[place] = draw.integers(256)
        (tmp_path / "test_batch").write_bytes(damaged)
        with contextlib.suppress(DataError):
            images, labels = load_cifar(tmp_path, "test")
            assert images.shape == (1, 32, 32, 3)
            assert labels.shape == (1,)


def test_binary_cifar10(tmp_path: Path) -> None:
    images = rows(10)
    below = tmp_path / "cifar-10-batches-bin"
    below.mkdir()
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        write_binary(below / f"data_batch_{number + 1}.bin", images[part], np.arange(10)[part])
    read, labels = load_cifar(tmp_path, "train")
    np.testing.assert_array_equal(read, images)
    assert labels.tolist() == list(range(10))


def test_binary_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    write_binary(tmp_path / "train.bin", rows(3), np.array([1, 2, 3]), np.array([97, 98, 99]))
    read, labels = load_cifar(tmp_path, "train", "cifar100")
    np.testing.assert_array_equal(read, rows(3))
    assert labels.tolist() == [97, 98, 99]


def write_strips(folder: Path, images: NDArray[np.uint8]) -> None:
    for number, part in enumerate(np.split(images, 5)):
        Image.fromarray(part.reshape(-1, 1024, 3)).save(folder / f"data_batch_{number + 1}.png")
    labels = [number % 10 for number in range(len(images))]
    (folder / "train_lables.json").write_text(json.dumps(labels))


def test_strips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An application may have set pillow's guard as low as it likes.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    below = tmp_path / "package"
    below.mkdir()
    write_strips(below, rows(15))
    read, labels = load_cifar(tmp_path, "train")
    np.testing.assert_array_equal(read, rows(15))
    assert labels.tolist() == [*range(10), *range(5)]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("train_lables.json", b"{", r"train_lables\.json is not a list of labels"),
        ("train_lables.json", b"[0.5]", "not a list of whole numbers"),
        ("train_lables.json", b"[0, 1]", "15 images but 2 labels"),
        ("train_lables.json", b"[10" + b", 0" * 14 + b"]", "labels from 0 to 10, but cifar10"),
        ("data_batch_3.png", b"no png", r"data_batch_3\.png is not a complete PNG"),
    ],
)
def test_damaged_strips(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    write_strips(tmp_path, rows(15))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        load_cifar(tmp_path, "train")


def test_a_strip_of_another_shape_or_cut_short(tmp_path: Path) -> None:
    write_strips(tmp_path, rows(15))
    path = tmp_path / "data_batch_2.png"
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(DataError, match="not a complete PNG"):
        load_cifar(tmp_path, "train")
    Image.new("RGB", (1000, 3)).save(path)
    with pytest.raises(DataError, match="RGB picture of 1000 x 3, not an RGB one 1024 wide"):
        load_cifar(tmp_path, "train")


def test_truncated_binary(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073 * 2 - 1))
    with pytest.raises(DataError, match="6145 bytes long, not a whole number of 3073-byte records"):
        load_cifar(tmp_path, "test")


def test_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*nowhere.* `bombus data get cifar10`"):
        load_cifar(tmp_path / "nowhere", "test")
    with pytest.raises(
        DataError, match=r"looked for test_batch, test_batch\.bin, test_batch\.png\)"
    ):
        load_cifar(tmp_path, "test")
    with pytest.raises(DataError, match=r"looked for test, test\.bin\); unpack cifar-100-python"):
        load_cifar(tmp_path, "test", "cifar100")
    (tmp_path / "train").mkdir()  # a folder of that name is no data file
    with pytest.raises(DataError, match="Neither"):
        load_cifar(tmp_path, "train", "cifar100")
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073))
    with pytest.raises(DataError, match=r"incomplete: .*data_batch_2\.bin is missing"):
        load_cifar(tmp_path, "train")


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        load_cifar(tmp_path, "test", "cifar-10")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="split"):
        load_cifar(tmp_path, "val")  # type: ignore[arg-type]
