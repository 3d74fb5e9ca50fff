"""Networks by name. `create("wrn-28-10", num_classes=10)`; `weights.load_weights` fills them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import torch

from bombus.backbones.blocks import Backbone
from bombus.backbones.input import Input
from bombus.backbones.resnet import resnet18, resnet50
from bombus.backbones.resnext import ResNeXt29
from bombus.backbones.vit import VisionTransformer, vit_b16, vit_demo, vit_s4
from bombus.backbones.wide_resnet import WideResNet
from bombus.errors import ConfigError, UnknownNameError

__all__ = ["Backbone", "Input", "create", "fitting", "names"]

_BACKBONES: dict[str, Callable[..., Backbone]] = {
    "wrn-10-1": partial(WideResNet, 10, 1),
    "wrn-16-1": partial(WideResNet, 16, 1),
    "wrn-16-2": partial(WideResNet, 16, 2),
    "wrn-28-10": partial(WideResNet, 28, 10),
    "wrn-40-2": partial(WideResNet, 40, 2),
    "resnext29-4x32": ResNeXt29,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vit-b16-224": partial(vit_b16, 224),
    "vit-b16-384": partial(vit_b16, 384),
    "vit-s4-32": partial(vit_s4, 32),
    "vit-demo": vit_demo,
}
_WRN = re.compile(r"wrn-(\d+)-(\d+)")


def names() -> tuple[str, ...]:
    """The names everyone uses; besides them, `wrn-D-W` works for any depth 6n + 4 and width."""
    return tuple(_BACKBONES)


def create(name: str, *, num_classes: int) -> Backbone:
    if num_classes < 1:
        raise ConfigError(f"A classifier needs at least one class, but num_classes={num_classes}.")
    if name in _BACKBONES:
        return _BACKBONES[name](num_classes=num_classes)
    if (match := _WRN.fullmatch(name)) and int(match[1]) % 6 == 4 and int(match[1]) >= 10:
        return WideResNet(int(match[1]), int(match[2]), num_classes=num_classes)
    raise UnknownNameError("backbone", name, [*names(), "wrn-D-W"])


Shapes = Mapping[str, tuple[int, ...]]


def fitting(shapes: Shapes) -> str | None:
    """Which of our networks has weights of these names and shapes, said in words; None if none has.

    Reads what the shapes give away (depth, width, classes) and compares on the meta device, where
    even the largest network costs no memory.
    """
    heads = [shapes[k] for k in ("fc.weight", "classifier.weight", "head.weight") if k in shapes]
    num_classes = heads[0][0] if heads and len(heads[0]) == 2 else 1000
    scores = {
        model.name: (_overlap(shapes, model), model) for model in _candidates(shapes, num_classes)
    }
    if not scores:
        return None
    score, model = max(scores.values(), key=lambda item: item[0])
    if score < 0.5:
        return None
    exact = "fits" if score == 1 else "comes nearest to"
    if isinstance(model, VisionTransformer) and model.name not in _BACKBONES:
        patch, width = model.patch_embed.proj.weight.shape[-1], model.cls_token.shape[-1]
        return (
            f"{exact} a VisionTransformer of patch {patch}, width {width}, depth "
            f"{len(model.blocks)}, {model.size} px with {num_classes} classes"
        )
    return f"{exact} {model.name!r} with {num_classes} classes"


def _candidates(shapes: Shapes, num_classes: int) -> list[Backbone]:
    with torch.device("meta"):
        try:
            if "block1.layer.0.conv1.weight" in shapes:
                length = len(
                    [k for k in shapes if re.fullmatch(r"block1\.layer\.\d+\.bn1\.weight", k)]
                )
                width = shapes["block1.layer.0.conv1.weight"][0] // 16
                return [WideResNet(6 * length + 4, width, num_classes=num_classes)]
            if {"patch_embed.proj.weight", "pos_embed"} <= shapes.keys():
                known = [create(n, num_classes=num_classes) for n in names() if n.startswith("vit")]
                return [*known, _vit_like(shapes, num_classes)]
        except (ValueError, IndexError):
            return []  # a foreign network that happens to share these names
        return [
            create(n, num_classes=num_classes) for n in names() if not n.startswith(("vit", "wrn"))
        ]


def _vit_like(shapes: Shapes, num_classes: int) -> Backbone:
    width, _, _, patch = shapes["patch_embed.proj.weight"]
    return VisionTransformer(
        size=patch * max(1, round((shapes["pos_embed"][1] - 1) ** 0.5)),
        patch=patch,
        width=width,
        depth=len([k for k in shapes if re.fullmatch(r"blocks\.\d+\.norm1\.weight", k)]),
        heads=1,  # the shapes do not tell
        num_classes=num_classes,
    )


def _overlap(shapes: Shapes, model: Backbone) -> float:
    """Share of equal names and shapes, counters aside, which old files do not hold."""
    own = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    keys = {key for key in own.keys() | shapes.keys() if "num_batches_tracked" not in key}
    return sum(own.get(key) == shapes.get(key) for key in keys) / len(keys)
