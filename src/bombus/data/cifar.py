"""The clean CIFAR-10 and CIFAR-100, from whichever of their layouts lies in a folder.

Learning Multiple Layers of Features from Tiny Images, 2009, https://www.cs.toronto.edu/~kriz/cifar.html

    pickles  data_batch_1 .. 5, test_batch (CIFAR-10); train, test (CIFAR-100)
    binary   data_batch_1.bin .. 5, test_batch.bin; train.bin, test.bin: a record is the label
             byte (CIFAR-100: coarse label, then fine label) and 3 x 32 x 32 bytes
    strips   data_batch_1.png .. 5, test_batch.png: 1024 pixels wide, one row per image;
             labels in train_lables.json and test_lables.json (so spelt)

The pickles are read without running them: nothing of what they name is ever called.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from bombus.errors import DataError, UnknownNameError

Split = Literal["train", "test"]
Variant = Literal["cifar10", "cifar100"]
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]  # (N, 32, 32, 3), (N,)

CLASSES = {"cifar10": 10, "cifar100": 100}
BATCHES = {
    ("cifar10", "train"): tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("cifar10", "test"): ("test_batch",),
    ("cifar100", "train"): ("train",),
    ("cifar100", "test"): ("test",),
}
PIXELS = 32 * 32
HOW_TO_GET = {
    "cifar10": "get it with `bombus data get cifar10`",
    "cifar100": "unpack cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html",
}


def load_cifar(folder: Path | str, split: Split, variant: Variant = "cifar10") -> Arrays:
    """Images (N, 32, 32, 3) and labels (N,); the files may lie in `folder` or one level below."""
    if variant not in CLASSES:
        raise UnknownNameError("variant of CIFAR", variant, CLASSES)
    if split not in ("train", "test"):
        raise UnknownNameError("split of CIFAR", split, ("train", "test"))
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder} with {variant}; {HOW_TO_GET[variant]}.")
    below = (path for path in folder.iterdir() if not path.name.startswith("."))
    places = [folder, *sorted(path for path in below if path.is_dir())]
    incomplete = None
    for place in places:
        for files, read in _layouts(place, split, variant):
            missing = [file for file in files if not file.is_file()]
            if not missing:
                images, labels = read(files)
                return images, _check_labels(labels, len(images), place, variant)
            if len(missing) < len(files):
                incomplete = incomplete or missing[0]
    if incomplete is not None:
        raise DataError(
            f"The {split} part of {variant} is incomplete: {incomplete} is missing; "
            f"{HOW_TO_GET[variant]}."
        )
    stem = BATCHES[variant, split][0]
    names = [stem, f"{stem}.bin", *([f"{stem}.png"] if variant == "cifar10" else [])]
    raise DataError(
        f"Neither {folder} nor a folder in it holds the {split} part of {variant} "
        f"(looked for {', '.join(names)}); {HOW_TO_GET[variant]}."
    )


def _layouts(
    place: Path, split: str, variant: str
) -> list[tuple[list[Path], Callable[[list[Path]], Arrays]]]:
    """All files a layout needs, and what reads them."""
    stems = BATCHES[variant, split]
    skip = 0 if variant == "cifar10" else 1  # CIFAR-100 has its coarse label first

    def binary(files: list[Path]) -> Arrays:
        return _join([_read_binary(file, skip) for file in files])

    def pickles(files: list[Path]) -> Arrays:
        return _join([_read_pickle(file) for file in files])

    layouts: list[tuple[list[Path], Callable[[list[Path]], Arrays]]] = [
        ([place / f"{stem}.bin" for stem in stems], binary),
        ([place / stem for stem in stems], pickles),
    ]
    if variant == "cifar10":
        strips = [place / f"{stem}.png" for stem in stems]
        layouts.append(([*strips, place / f"{split}_lables.json"], _read_strips))
    return layouts


def _join(parts: list[Arrays]) -> Arrays:
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _check_labels(
    labels: NDArray[np.int64], images: int, place: Path, variant: str
) -> NDArray[np.int64]:
    if len(labels) != images or not images:
        raise DataError(
            f"{place} has {images} images but {len(labels)} labels; {HOW_TO_GET[variant]}."
        )
    if labels.min() < 0 or labels.max() >= CLASSES[variant]:
        raise DataError(
            f"{place} has labels from {labels.min()} to {labels.max()}, but {variant} has classes "
            f"0 to {CLASSES[variant] - 1}; {HOW_TO_GET[variant]}."
        )
    return labels


def _planes_last(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(N, 3072), all red before all green before all blue -> (N, 32, 32, 3)"""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_binary(path: Path, skip: int) -> Arrays:
    record = skip + 1 + 3 * PIXELS
    content = np.fromfile(path, np.uint8)
    if content.size % record:
        raise DataError(
            f"{path} is {content.size} bytes long, not a whole number of {record}-byte records; "
            "it is truncated or of the other variant."
        )
    rows = content.reshape(-1, record)
    return _planes_last(rows[:, skip + 1 :]), rows[:, skip].astype(np.int64)


def _read_strips(files: list[Path]) -> Arrays:
    *strips, listed = files
    try:
        labels = np.asarray(json.loads(listed.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        raise DataError(f"{listed} is not a list of labels ({error}).") from error
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise DataError(f"{listed} is not a list of whole numbers.")
    images = np.concatenate([_read_strip(path) for path in strips])
    return images, labels.astype(np.int64)


def _read_strip(path: Path) -> NDArray[np.uint8]:
    try:
        # Not Image.open: its guard against huge images may be set lower than a strip by the
        # application, and the width, checked before decoding, bounds the size here.
        with PngImageFile(path) as image:
            if image.width != PIXELS or image.height > 50_000 or image.mode != "RGB":
                raise DataError(
                    f"{path} is a {image.mode} picture of {image.width} x {image.height}, not an "
                    f"RGB one {PIXELS} wide with one row per image."
                )
            pixels = np.array(image, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} is not a complete PNG ({error}).") from error
    return pixels.reshape(-1, 32, 32, 3)


class _Array:
    """Stands in for numpy.ndarray: takes what the pickle says of it, to be checked later."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dtype(_Array):
    """Stands in for numpy.dtype."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        super().__init__()
        self.code = code


class _Bytes(_Array):
    """Stands in for _codecs.encode, with which Python 3 writes bytes into old pickle protocols."""

    def __new__(cls, text: str, codec: str) -> Any:
        if codec != "latin1":
            raise pickle.UnpicklingError(f"bytes written as {codec!r}")
        return text.encode("latin1")


# What Python 2 wrote into the official files, and Python 3 writes of the same content. Opcodes that
# a damaged file could use to ask for gigabytes (BYTEARRAY8 and the like) are not among them.
_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
)
# All of these are classes with __setstate__, so a pickle cannot alter even the stand-ins.
_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python, not the one in C: that one reserves any memory a file asks for."""

    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES}  # noqa: RUF012

    def find_class(self, module: str, name: str) -> Any:
        found = _STAND_INS.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return found


def _read_pickle(path: Path) -> Arrays:
    def refuse(why: object) -> NoReturn:
        raise DataError(f"{path} is not a CIFAR pickle and was not read: {why}.")

    try:
        # Python 2 wrote the files; its strings are bytes.
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (pickle.UnpicklingError, OSError) as error:
        refuse(error)
    except Exception as error:  # a damaged pickle makes the machine raise nearly anything
        refuse(f"it is damaged ({type(error).__name__})")
    if not isinstance(content, dict):
        refuse("it holds no dict")
    named = {
        key.decode("latin1") if isinstance(key, bytes) else key: content[key] for key in content
    }
    labels = named.get("fine_labels", named.get("labels"))
    if not isinstance(labels, list) or not all(
        type(label) is int and 0 <= label < 256 for label in labels
    ):
        refuse("its labels are not a list of whole numbers from 0 to 255")
    match named.get("data"):
        # What numpy's own __setstate__ takes: version, shape, dtype, column-major?, bytes.
        case _Array(
            state=(_, (int(rows), 3072), _Dtype(code=b"u1" | "u1"), fortran, bytes(raw))
        ) if rows >= 0 and len(raw) == rows * 3072:
            flat = np.frombuffer(raw, np.uint8)
        case _:
            refuse("its data are not an array of uint8 rows of 3072")
    return _planes_last(flat.reshape(rows, 3072, order="F" if fortran else "C")), np.array(
        labels, np.int64
    )
