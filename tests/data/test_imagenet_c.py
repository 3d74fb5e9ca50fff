"""ImageNetC on a small tree in the published layout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bombus.data import imagenet_c
from bombus.data.imagenet_c import ImageNetC
from bombus.data.images import ImageSet
from bombus.errors import DataError, UnknownNameError

WNIDS = ("n01440764", "n01443537", "n02105855")
NAMES = [f"{wnid}/ILSVRC2012_val_{n:08}.JPEG" for n, wnid in enumerate(WNIDS * 2)]


def colour(corruption: str, severity: int, number: int) -> tuple[int, int, int]:
    return (10 * severity, 20 * number, 5 * len(corruption))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "ImageNet-C"
    for corruption in ("fog", "gaussian_noise", "speckle_noise"):
        for severity in (3, 5):
            for number, name in enumerate(NAMES):
                path = root / corruption / str(severity) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # Lossless in spite of the name, as one image of ImageNet is: pixels are exact.
                Image.new("RGB", (8, 8), colour(corruption, severity, number)).save(path, "PNG")
    return root


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "list.txt"
    path.write_text("\n".join([NAMES[4], NAMES[0], NAMES[2]]) + "\n\n")
    return path


def test_images_of_the_list_in_its_order(tree: Path, listed: Path) -> None:
    images: ImageSet = ImageNetC(tree, listed)
    assert images.name == "imagenet-c"
    assert images.domains == ("gaussian_noise", "fog", "speckle_noise")
    assert images.classes == 3
    assert images.size("fog") == 3
    x, y = images.load("fog", 5, np.array([2, 0]))
    assert x.shape == (2, 3, 8, 8)
    assert y.tolist() == [2, 1]
    expected = torch.tensor([colour("fog", 5, 2), colour("fog", 5, 4)]) / 255
    assert torch.equal(x[:, :, 3, 3], expected)
    weak, _ = images.load("fog", 3, np.array([0]))
    assert torch.equal(weak[0, :, 0, 0], torch.tensor(colour("fog", 3, 4)) / 255)


def test_windows_line_ends_in_the_list(tree: Path, listed: Path) -> None:
    listed.write_bytes(listed.read_bytes().replace(b"\n", b"\r\n"))
    assert ImageNetC(tree, listed).size("fog") == 3


def test_without_a_list_the_choice_is_fixed_and_recorded(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagenet_c, "PROTOCOL_SIZE", 4)
    images = ImageNetC(tree)
    assert images.size("fog") == 4
    by_hash = sorted(NAMES, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:4]
    _, y = images.load("fog", 5, np.arange(4))
    assert y.tolist() == [WNIDS.index(name.split("/")[0]) for name in by_hash]
    described = images.describe()
    assert described["list"] == "the first 4 by sha256 of wnid/name"
    assert described["list_sha256"] == hashlib.sha256("\n".join(by_hash).encode()).hexdigest()


def test_a_small_tree_is_used_whole(tree: Path) -> None:
    assert ImageNetC(tree).size("gaussian_noise") == len(NAMES)


def test_classes_from_a_list(tree: Path, listed: Path) -> None:
    (tree / "classes.txt").write_text("n00000001\n" + "\n".join(WNIDS) + "\n")
    images = ImageNetC(tree, listed)
    assert images.classes == 4
    assert images.load("fog", 5, np.arange(3))[1].tolist() == [2, 1, 3]
    assert images.describe()["classes_from"] == "classes.txt"
    images = ImageNetC(tree, listed, classes=WNIDS[::-1])  # the argument has the last word
    assert images.load("fog", 5, np.arange(3))[1].tolist() == [1, 2, 0]
    assert images.describe()["classes_from"] == "the classes argument"
    with pytest.raises(DataError, match=r"of a class that is not among the 2 of .*ImageNet-C"):
        ImageNetC(tree, listed, classes=WNIDS[1:])
    with pytest.raises(DataError, match="none may come twice"):
        ImageNetC(tree, listed, classes=[*WNIDS, WNIDS[0]])


def test_resize_and_crop(tree: Path, listed: Path) -> None:
    path = tree / "fog" / "5" / NAMES[0]
    Image.new("RGB", (500, 300), (1, 2, 3)).save(path)
    with pytest.raises(DataError, match=r'500 x 300 .* 8 x 8; use preprocess="resize256-crop224"'):
        ImageNetC(tree, listed).load("fog", 5, np.array([1]))
    images = ImageNetC(tree, listed, "resize256-crop224")
    x, _ = images.load("fog", 5, np.arange(3))
    assert x.shape == (3, 3, 224, 224)
    assert images.describe()["preprocessing"] == "resize256-crop224, uint8 / 255"
    with pytest.raises(UnknownNameError, match="did you mean 'resize256-crop224'"):
        ImageNetC(tree, listed, "resize-256-crop-224")  # type: ignore[arg-type]


def test_missing_folders(tree: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*nowhere with ImageNet-C; unpack"):
        ImageNetC(tree / "nowhere")
    with pytest.raises(DataError, match="no corruption folder such as gaussian_noise/5"):
        ImageNetC(tree / "fog" / "5" / WNIDS[0])
    (tree.parent / "hollow" / "fog" / "5").mkdir(parents=True)
    with pytest.raises(DataError, match="0 classes by the sorted ids of the tree"):
        ImageNetC(tree.parent / "hollow")
    (tree.parent / "hollow" / "fog" / "5" / WNIDS[0]).mkdir()
    with pytest.raises(DataError, match=r"holds no image as wnid/name\.JPEG"):
        ImageNetC(tree.parent / "hollow")


def test_wrong_requests(tree: Path, listed: Path) -> None:
    images = ImageNetC(tree, listed)
    with pytest.raises(DataError, match="fog holds severity 3, 5, but severity 4 was asked for"):
        images.load("fog", 4, np.array([0]))
    with pytest.raises(DataError, match="'snow' is not in"):
        images.load("snow", 5, np.array([0]))
    with pytest.raises(UnknownNameError, match="did you mean 'fog'"):
        images.size("frog")
    with pytest.raises(DataError, match="it has images 0 to 2"):
        images.load("fog", 5, np.array([-1]))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "lists 0 images"),
        (f"{NAMES[0]}\n{NAMES[0]}", "lists 2 images, 1 of them different"),
        ("/etc/passwd", r"'/etc/passwd', which is not wnid/name\.JPEG"),
        ("../x.JPEG", "which is not wnid"),
        ("n01440764/..", "which is not wnid"),
        ("a/b/c.JPEG", "which is not wnid"),
        ("name.JPEG", "which is not wnid"),
        ("n09999999/x.JPEG", "n09999999/x.JPEG is of a class that is not among the 3"),
        ("n01440764/x.JPEG", r"The image .*gaussian_noise/5/n01440764/x\.JPEG is missing"),
    ],
)
def test_wrong_lists(tree: Path, listed: Path, text: str, sentence: str) -> None:
    listed.write_text(text)
    with pytest.raises(DataError, match=sentence):
        ImageNetC(tree, listed)


def test_unreadable_lists(tree: Path, listed: Path) -> None:
    with pytest.raises(DataError, match=r"no image list .*absent"):
        ImageNetC(tree, tree / "absent")
    listed.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as text"):
        ImageNetC(tree, listed)


def test_broken_and_missing_pictures_are_named(tree: Path, listed: Path) -> None:
    images = ImageNetC(tree, listed)
    (tree / "fog" / "5" / NAMES[0]).write_bytes(b"\xff\xd8\xff\xe0 cut off")
    with pytest.raises(DataError, match=r"fog/5/n01440764/.*00000000\.JPEG could not be decoded"):
        images.load("fog", 5, np.arange(3))
    (tree / "fog" / "5" / NAMES[0]).unlink()
    with pytest.raises(DataError, match=r"00000000\.JPEG is missing"):
        images.load("fog", 5, np.arange(3))


def test_describe_has_no_absolute_paths(tree: Path, listed: Path) -> None:
    described = ImageNetC(tree, listed).describe()
    assert str(tree.parent) not in json.dumps(described)
    assert described["list"] == "list.txt"
    assert described["classes_from"] == "the sorted ids of the tree, 3 found"
    assert described["severities"]["fog"] == [3, 5]
    assert described["preprocessing"] == "none, uint8 / 255"
    assert set(described["fingerprints"]) == {"gaussian_noise", "fog", "speckle_noise"}
    images = ImageNetC(tree, listed)
    (tree / "fog" / "5" / NAMES[4]).unlink()
    with pytest.raises(DataError, match=r"00000004\.JPEG cannot be read \(No such file"):
        images.describe()
