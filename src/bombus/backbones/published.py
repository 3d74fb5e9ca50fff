"""Published weights by name: `--weights robustbench:Standard` and the like.

Each entry says which network a file fills, how its images enter, where the file comes from and
where it is looked for: the cache's weights folder first, then wherever the publisher's own library
keeps it. Nothing is ever downloaded from here; a missing file's message says what to save where.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bombus.backbones.input import HALF, IMAGENET, Input
from bombus.data.fetch import cache_folder
from bombus.errors import ConfigError, UnknownNameError, WeightsError

# Two letters at least before the colon: C:weights.pt is a file on a Windows drive.
_NAME = re.compile(r"[A-Za-z]{2,}:[^/\\]+")


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    name: str
    backbone: str
    classes: int
    benchmarks: tuple[str, ...]  # whose published tables were made with it
    input: Input  # how the publisher normalises; a normalisation inside the file has precedence
    address: str
    file: str  # its place below the weights folder
    elsewhere: tuple[str, ...] = ()  # "library/pattern": where that library keeps it
    sha256: str = ""  # the first digits, where published; without them the key layout must do

    def places(self) -> Iterator[Path]:
        yield weights_folder() / self.file
        for pattern in self.elsewhere:
            library, _, below = pattern.partition("/")
            yield from sorted(_LIBRARIES[library]().glob(below))

    def find(self) -> Path | None:
        return next((place for place in self.places() if place.is_file()), None)

    def how_to_get(self) -> str:
        return f"save {self.address} as {weights_folder() / self.file}"

    def require(self) -> Path:
        found = self.find()
        if found is None:
            raise WeightsError(
                f"The weights {self.name} are not on this machine; {self.how_to_get()}, or give "
                "the path of your copy as weights."
            )
        return found

    def check_sha256(self, digest: str, file: Path) -> None:
        if not digest.startswith(self.sha256):
            raise WeightsError(
                f"{file} has a sha256 that begins with {digest[: len(self.sha256)]}, not "
                f"{self.sha256} as {self.name} has; delete it and {self.how_to_get()}."
            )

    def check_use(self, backbone: str | None, classes: int | None, task: str) -> None:
        """Refuse another network than these weights' own, or a task of other classes."""
        if backbone not in (None, self.backbone):
            raise ConfigError(
                f"{self.name} holds the weights of {self.backbone}, but the backbone asked for is "
                f"{backbone}; leave --backbone out, or give other weights."
            )
        if classes not in (None, self.classes):
            raise ConfigError(
                f"{self.name} tells {self.classes} classes apart, but {task} has {classes}; it is "
                f"for {' and '.join(self.benchmarks)}."
            )


def weights_folder() -> Path:
    return cache_folder() / "weights"


def named_weights(paths: Sequence[Path | str]) -> PublishedWeights | None:
    """The published weights that are meant, or None if the paths are files."""
    named = [str(p) for p in paths if _NAME.fullmatch(str(p)) and not Path(p).exists()]
    if not named:
        return None
    if named[0] not in PUBLISHED:
        raise UnknownNameError("published weights file", named[0], PUBLISHED)
    if len(paths) > 1:
        raise ConfigError(
            f"Got {len(paths)} weights, {named[0]} among them; a published name stands alone."
        )
    return PUBLISHED[named[0]]


# --- where libraries keep what they download -------------------------------------------------


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _torch_hub() -> Path:
    home = os.environ.get("TORCH_HOME") or _cache_home() / "torch"
    return Path(home).expanduser() / "hub" / "checkpoints"


def _hugging_face() -> Path:
    home = os.environ.get("HF_HOME") or _cache_home() / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _robustbench() -> Path:
    return Path("models")  # in the folder one works in, unless told otherwise


_LIBRARIES: dict[str, Callable[[], Path]] = {
    "torch": _torch_hub,
    "huggingface": _hugging_face,
    "robustbench": _robustbench,
}


# --- what is published -----------------------------------------------------------------------

_VIT = "vit_base_patch16_224.augreg_in21k_ft_in1k"
_PLAIN = Input()  # [0, 1] straight in
_TIMM_VIT = PublishedWeights(
    name=f"timm:{_VIT}",
    backbone="vit-b16-224",
    classes=1000,
    benchmarks=("imagenet-c",),
    input=HALF,
    address=f"https://huggingface.co/timm/{_VIT}/resolve/main/model.safetensors",
    file=f"timm/{_VIT}.safetensors",
    elsewhere=(
        f"huggingface/models--timm--{_VIT}/snapshots/*/model.safetensors",
        f"huggingface/models--timm--{_VIT}/snapshots/*/pytorch_model.bin",
    ),
)

PUBLISHED = {
    entry.name: entry
    for entry in (
        PublishedWeights(
            name="robustbench:Standard",
            backbone="wrn-28-10",
            classes=10,
            benchmarks=("cifar10-c",),
            input=_PLAIN,
            address="https://drive.google.com/uc?id=1t98aEuzeTL8P7Kpd5DIrCoCL21BNZUhC",
            file="robustbench/cifar10/corruptions/Standard.pt",
            # The same file under each of its threat models: corruptions, Linf, L2.
            elsewhere=("robustbench/cifar10/*/Standard.pt",),
        ),
        PublishedWeights(
            name="robustbench:Hendrycks2020AugMix_ResNeXt",
            backbone="resnext29-4x32",
            classes=100,
            benchmarks=("cifar100-c",),
            input=HALF,
            address="https://drive.google.com/uc?id=1ocnHbvDdOBLvgNr6K7vEYL08hUdkD1Rv",
            file="robustbench/cifar100/corruptions/Hendrycks2020AugMix_ResNeXt.pt",
            elsewhere=("robustbench/cifar100/corruptions/Hendrycks2020AugMix_ResNeXt.pt",),
        ),
        PublishedWeights(
            name="torchvision:resnet50-v1",
            backbone="resnet50",
            classes=1000,
            benchmarks=("imagenet-c",),
            input=IMAGENET,
            address="https://download.pytorch.org/models/resnet50-0676ba61.pth",
            file="torchvision/resnet50-0676ba61.pth",
            elsewhere=("torch/resnet50-0676ba61.pth",),
            sha256="0676ba61",
        ),
        _TIMM_VIT,
        # The same file as ViDA's evaluation feeds it: [0, 1] straight in, although it was trained
        # on (x - 0.5) / 0.5. The published tables of this network are of this kind (55.8 % source
        # error; normalised properly it is 49.8 %, github.com/Yangsenqiao/vida/issues/14).
        replace(
            _TIMM_VIT,
            name="vida:vit_base_patch16_224-unnormalised",
            benchmarks=("imagenet-c-resized",),
            input=_PLAIN,
        ),
    )
}
