"""ImageFolder on small trees, and how image files of all kinds are read."""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bombus.data.folder import ImageFolder
from bombus.data.images import ImageSet, read_image
from bombus.errors import ConfigError, DataError, UnknownNameError


def save_picture(path: Path, size: tuple[int, int] = (8, 8), colour: Any = (9, 99, 199)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "office"
    save_picture(root / "photo" / "cat" / "b.PNG", colour=(1, 2, 3))
    save_picture(root / "photo" / "cat" / "a.png", colour=(4, 5, 6))
    save_picture(root / "photo" / "dog" / "c.bmp", colour=(7, 8, 9))
    save_picture(root / "art" / "ant" / "d.webp")
    save_picture(root / "art" / "dog" / "e.JPG")
    save_picture(root / "fog" / "dog" / "f.jpeg")
    return root


def test_classes_are_numbered_by_name_over_all_domains(tree: Path) -> None:
    images: ImageSet = ImageFolder(tree)
    assert images.name == "office"
    assert images.domains == ("fog", "art", "photo")  # a published corruption comes first
    assert images.classes == 3
    assert [images.size(domain) for domain in images.domains] == [1, 2, 3]
    x, y = images.load("photo", 5, np.array([0, 1, 2]))
    assert y.tolist() == [1, 1, 2]
    assert y.dtype == torch.int64
    assert x.shape == (3, 3, 8, 8)
    assert torch.equal(x[:, :, 0, 0], torch.tensor([[4, 5, 6], [1, 2, 3], [7, 8, 9]]) / 255)
    assert images.load("art", 5, np.array([0, 1]))[1].tolist() == [0, 2]


def test_severity_is_ignored_and_the_set_pickles(tree: Path) -> None:
    images = pickle.loads(pickle.dumps(ImageFolder(tree)))  # noqa: S301 - our own
    weak, strong = (images.load("photo", severity, np.array([2]))[0] for severity in (1, 5))
    assert torch.equal(weak, strong)


def test_hidden_and_other_files_are_left_alone(tree: Path) -> None:
    (tree / "photo" / "cat" / "._a.png").write_bytes(b"no picture")
    (tree / "photo" / "cat" / "Thumbs.db").write_bytes(b"no picture")
    (tree / "photo" / "cat" / "folder.png").mkdir()
    (tree / "photo" / ".cache").mkdir()
    (tree / ".git").mkdir()
    (tree / "notes.txt").write_text("hello")
    assert ImageFolder(tree).size("photo") == 3
    assert ImageFolder(tree).domains == ("fog", "art", "photo")


def test_unequal_sizes_need_a_size(tree: Path) -> None:
    save_picture(tree / "photo" / "dog" / "big.png", (20, 10))
    images = ImageFolder(tree)
    message = r"big\.png is 20 x 10 pixels, but the set's first image is 8 x 8; bring them"
    with pytest.raises(DataError, match=message):
        images.load("photo", 5, np.arange(4))
    with pytest.raises(DataError, match=message):  # also when it is alone in its batch
        images.load("photo", 5, np.array([2]))
    x, _ = ImageFolder(tree, size=6).load("photo", 5, np.arange(4))
    assert x.shape == (4, 3, 6, 6)


def test_the_centre_is_kept(tmp_path: Path) -> None:
    wide = Image.new("RGB", (30, 10), (255, 0, 0))
    wide.paste((0, 255, 0), (10, 0, 20, 10))
    (tmp_path / "d" / "c").mkdir(parents=True)
    wide.save(tmp_path / "d" / "c" / "wide.png")
    wide.rotate(90, expand=True).save(tmp_path / "d" / "c" / "tall.png")
    x, _ = ImageFolder(tmp_path, size=10).load("d", 1, np.arange(2))
    assert torch.equal(x, torch.tensor([0.0, 1, 0])[None, :, None, None].expand(2, 3, 10, 10))


def test_missing_and_empty_folders(tree: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*nowhere; it should hold images as domain"):
        ImageFolder(tree / "nowhere")
    with pytest.raises(DataError, match="cat holds no images; the layout is domain/class/image"):
        ImageFolder(tree / "photo" / "cat")
    (tree / "empty" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="empty holds no images"):
        ImageFolder(tree)


def test_wrong_requests(tree: Path) -> None:
    images = ImageFolder(tree)
    with pytest.raises(UnknownNameError, match="did you mean 'photo'"):
        images.size("photos")
    with pytest.raises(DataError, match="'snow' is not in"):
        images.size("snow")
    with pytest.raises(DataError, match="it has images 0 to 2"):
        images.load("photo", 5, np.array([3]))
    with pytest.raises(ConfigError, match="size is 0"):
        ImageFolder(tree, size=0)


def test_describe_notices_new_files_and_has_no_absolute_paths(tree: Path) -> None:
    before = ImageFolder(tree).describe()
    assert str(tree.parent) not in json.dumps(before)
    assert before["images"] == {"fog": 1, "art": 2, "photo": 3}
    assert before["class_names"] == ["ant", "cat", "dog"]
    assert before == ImageFolder(tree).describe()
    save_picture(tree / "photo" / "cat" / "new.png")
    assert ImageFolder(tree).describe()["fingerprint"] != before["fingerprint"]
    assert "shorter side 4" in ImageFolder(tree, 4).describe()["preprocessing"]


# Names as people give them: any letters, also such that sort differently by case or accent. Case
# folding keeps them apart on file systems that ignore it.
NAMES = st.sets(
    st.text(st.characters(categories=("Ll", "Lo", "Nd")), min_size=1, max_size=8),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(domains=NAMES, classes=NAMES)
def test_any_names_will_do(domains: set[str], classes: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for domain in domains:
            for name in classes:
                save_picture(Path(folder) / domain / name / "a.png", (2, 2))
        images = ImageFolder(folder)
        assert set(images.domains) == domains
        assert images.class_names == tuple(sorted(classes))
        for domain in domains:
            _, y = images.load(domain, 1, np.arange(len(classes)))
            assert y.tolist() == list(range(len(classes)))


def grey16() -> Image.Image:
    return Image.fromarray(np.full((4, 4), 128 << 8 | 77, np.uint16))


def palette() -> Image.Image:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.info["transparency"] = b"\xff\x80"
    return image


@pytest.mark.parametrize(
    ("image", "suffix", "expected"),
    [
        (Image.new("L", (4, 4), 77), "png", (77, 77, 77)),
        (Image.new("L", (4, 4), 77), "jpg", (77, 77, 77)),
        (Image.new("1", (4, 4), 1), "png", (255, 255, 255)),
        (Image.new("LA", (4, 4), (50, 128)), "png", (50, 50, 50)),
        (Image.new("RGBA", (4, 4), (1, 2, 3, 0)), "png", (1, 2, 3)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 0)), "jpg", (255, 255, 255)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 255)), "jpg", (0, 0, 0)),
        (palette(), "png", (10, 20, 30)),
        (grey16(), "png", (128, 128, 128)),
    ],
    ids=["grey", "grey-jpeg", "bits", "grey-alpha", "alpha", "white-cmyk", "cmyk", "palette", "16"],
)
def test_all_colour_modes(
    tmp_path: Path, image: Image.Image, suffix: str, expected: tuple[int, int, int]
) -> None:
    path = tmp_path / f"a.{suffix}"
    image.save(path)
    pixels = read_image(path)
    assert pixels.shape == (4, 4, 3)
    assert pixels.dtype == np.uint8
    assert (pixels == expected).all()


def test_exif_orientation_is_followed(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 8), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").shape == (16, 8, 3)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.effect_noise((64, 64), 50).save(path)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"not a picture", b"GIF89a" + whole):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"a\.jpg could not be decoded as JPEG.*replace it"):
            read_image(path)
    with pytest.raises(DataError, match=r"b\.jpg is missing"):
        read_image(tmp_path / "b.jpg")


def test_huge_images_are_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "huge.bmp"
    Image.new("1", (7200, 7200)).save(path)
    path.write_bytes(path.read_bytes()[:200])  # were it decoded, it would be found truncated
    with pytest.raises(DataError, match="7200 x 7200 pixels, more than the 50,000,000 allowed"):
        read_image(path)
    Image.new("1", (1, 300_000)).save(tmp_path / "strip.png")
    with pytest.raises(DataError, match=r"strip\.png comes to 224 x 67200000 pixels"):
        read_image(tmp_path / "strip.png", 224, 224)


def test_images_beyond_pillows_own_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.bmp"
    Image.new("1", (8, 8)).save(path)
    content = bytearray(path.read_bytes())
    for side in (10_000, 30_000):  # pillow warns of the first and refuses the second
        content[18:26] = side.to_bytes(4, "little") * 2
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"bomb\.bmp"):
            read_image(path)
