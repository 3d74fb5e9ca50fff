"""The benchmarks by name: their protocol, their network, and how to open their images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bombus.data.corruptions import STANDARD
from bombus.data.fetch import cache_folder
from bombus.data.images import ImageSet
from bombus.errors import DataError, UnknownNameError

EMBEDDED = Path("embedded")  # in the place of a folder: the demo's own clean or training images

if TYPE_CHECKING:
    from bombus.data.cifar import Arrays
    from bombus.data.imagenet_c import ImageNetC


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    name: str
    title: str
    classes: int | None  # None: as many as the images have
    batch_size: int
    backbone: str | None  # None: the user's to say
    open: Callable[[Path | None], ImageSet]
    weights: tuple[Path, ...] = ()  # embedded; other benchmarks' weights are the user's to give
    warmup: Path | None = None  # embedded: what `bee` has learnt of 50,000 source images
    training: Callable[[], Arrays] | None = None  # embedded, for all others that need source images
    domains: tuple[str, ...] | None = STANDARD  # None: all that the images have
    source: Literal["cifar10", "cifar100", "class folders"] = "class folders"  # training images
    source_size: tuple[int, int] | None = None  # their shorter side, and the centre square kept
    like: str | None = None  # the benchmark whose published settings apply, if not its own

    @property
    def settings_name(self) -> str:
        return self.like or self.name


def find_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise UnknownNameError("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]


def _demo(folder: Path | None) -> ImageSet:
    from bombus.data.embedded import EmbeddedImages

    if folder is not None:
        raise DataError("The demo's images are embedded; leave --data out.")
    return EmbeddedImages()


def _demo_training() -> Arrays:
    from bombus.data.embedded import training_images

    return training_images()


def _cifar10_c(folder: Path | None) -> ImageSet:
    from bombus.data.cifar_c import CifarC

    return CifarC(folder or cache_folder() / "cifar10-c", "cifar10-c")


def _cifar100_c(folder: Path | None) -> ImageSet:
    from bombus.data.cifar_c import CifarC

    return CifarC(folder or cache_folder() / "cifar100-c", "cifar100-c")


def _imagenet_c(folder: Path | None) -> ImageSet:
    from bombus.data.imagenet_c import ImageNetC

    return _whole(ImageNetC(folder or cache_folder() / "imagenet-c"))


def _imagenet_c_resized(folder: Path | None) -> ImageSet:
    from bombus.data.imagenet_c import ImageNetC

    return _whole(
        ImageNetC(folder or cache_folder() / "imagenet-c", preprocess="resize256-crop224")
    )


def _whole(images: ImageNetC) -> ImageNetC:
    """A part of the classes, numbered by themselves, would be scored against wrong labels."""
    if images.classes != 1000:
        raise DataError(
            f"{images.folder} holds {images.classes} classes, but ImageNet has 1,000; list all "
            f"their ids in {images.folder / 'classes.txt'}, one a line, in the network's order."
        )
    return images


def _folder(folder: Path | None) -> ImageSet:
    from bombus.data.folder import ImageFolder

    if folder is None:
        raise DataError("The benchmark 'folder' needs --data FOLDER, laid out domain/class/image.")
    return ImageFolder(folder)


_EMBEDDED = Path(__file__).parents[1] / "demo"


BENCHMARKS = {
    b.name: b
    for b in (
        Benchmark(
            name="demo",
            title="1,000 embedded CIFAR-10 test images, corrupted on the fly",
            classes=10,
            batch_size=100,
            backbone="wrn-16-1",
            open=_demo,
            weights=(_EMBEDDED / "wrn-16-1.safetensors",),
            warmup=_EMBEDDED / "bee-warmup.safetensors",
            training=_demo_training,
            source="cifar10",
        ),
        Benchmark(
            name="demo-vit",
            title="the demo's images, and a small vision transformer",
            classes=10,
            batch_size=100,
            backbone="vit-demo",
            open=_demo,
            weights=(_EMBEDDED / "vit-demo.safetensors",),
            training=_demo_training,
            source="cifar10",
            like="cifar10-c",
        ),
        Benchmark(
            name="cifar10-c",
            title="CIFAR10-C, 10,000 images a domain",
            classes=10,
            batch_size=200,
            backbone="wrn-28-10",
            open=_cifar10_c,
            source="cifar10",
        ),
        Benchmark(
            name="cifar100-c",
            title="CIFAR100-C, 10,000 images a domain",
            classes=100,
            batch_size=200,
            backbone="resnext29-4x32",
            open=_cifar100_c,
            source="cifar100",
        ),
        Benchmark(
            name="imagenet-c",
            title="ImageNet-C, 5,000 images a domain",
            classes=1000,
            batch_size=64,
            backbone="resnet50",
            open=_imagenet_c,
            source_size=(256, 224),
        ),
        Benchmark(
            name="imagenet-c-resized",
            title="ImageNet-C, its 224 px images resized to 256 and cropped to 224 once more",
            classes=1000,
            batch_size=64,
            backbone="resnet50",
            open=_imagenet_c_resized,
            source_size=(256, 224),
            like="imagenet-c",
        ),
        Benchmark(
            name="folder",
            title="your own images, domain/class/image; domains by name",
            classes=None,
            batch_size=64,
            backbone=None,
            open=_folder,
            domains=None,
        ),
    )
}
