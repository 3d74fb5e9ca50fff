"""Names, shapes and arithmetic of our own networks."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import nn

from bombus.backbones import Backbone, create, fitting, names
from bombus.backbones.input import HALF, IMAGENET
from bombus.backbones.resnet import BasicBlock, Bottleneck, ResNet
from bombus.backbones.resnext import ResNeXt29
from bombus.backbones.vit import Block, VisionTransformer
from bombus.backbones.wide_resnet import WideResNet
from bombus.errors import ConfigError, InputError, UnknownNameError

# wrn-28-10, resnet50, resnet18 and vit-b16-224: the exact counts published with the checkpoints.
# The others are published rounded (resnext29 6.90 M, wrn-40-2 2.2 M, wrn-16-2 0.7 M, wrn-16-1
# 0.2 M, vit-b16-384 86.9 M); their last digits are our own count, pinned against change.
PARAMETERS = [
    ("wrn-28-10", 10, 36_479_194),
    ("wrn-16-2", 10, 691_674),
    ("wrn-16-1", 10, 175_066),
    ("wrn-40-2", 10, 2_243_546),
    ("resnext29-4x32", 100, 6_900_132),
    ("resnet50", 1000, 25_557_032),
    ("resnet18", 1000, 11_689_512),
    ("vit-b16-224", 1000, 86_567_656),
    ("vit-b16-384", 1000, 86_859_496),
]

FACTS = [
    ("wrn-28-10", "conv1.weight", (16, 3, 3, 3)),
    ("wrn-28-10", "block1.layer.0.convShortcut.weight", (160, 16, 1, 1)),
    ("wrn-28-10", "block1.layer.0.bn1.running_mean", (16,)),
    ("wrn-28-10", "block2.layer.0.conv1.weight", (320, 160, 3, 3)),
    ("wrn-28-10", "block3.layer.3.conv2.weight", (640, 640, 3, 3)),
    ("wrn-28-10", "bn1.weight", (640,)),
    ("wrn-28-10", "fc.weight", (10, 640)),
    ("resnext29-4x32", "conv_1_3x3.weight", (64, 3, 3, 3)),
    ("resnext29-4x32", "bn_1.weight", (64,)),
    ("resnext29-4x32", "stage_1.0.conv_reduce.weight", (128, 64, 1, 1)),
    ("resnext29-4x32", "stage_1.0.conv_conv.weight", (128, 32, 3, 3)),
    ("resnext29-4x32", "stage_1.0.downsample.0.weight", (256, 64, 1, 1)),
    ("resnext29-4x32", "stage_1.0.downsample.1.running_var", (256,)),
    ("resnext29-4x32", "stage_3.2.conv_expand.weight", (1024, 512, 1, 1)),
    ("resnext29-4x32", "stage_2.1.bn_reduce.weight", (256,)),
    ("resnext29-4x32", "classifier.weight", (10, 1024)),
    ("resnet50", "conv1.weight", (64, 3, 7, 7)),
    ("resnet50", "layer1.0.downsample.0.weight", (256, 64, 1, 1)),
    ("resnet50", "layer3.5.conv2.weight", (256, 256, 3, 3)),
    ("resnet50", "layer4.2.bn3.running_var", (2048,)),
    ("resnet18", "layer2.0.downsample.1.weight", (128,)),
    ("resnet18", "layer4.1.conv2.weight", (512, 512, 3, 3)),
    ("vit-b16-224", "cls_token", (1, 1, 768)),
    ("vit-b16-224", "pos_embed", (1, 197, 768)),
    ("vit-b16-384", "pos_embed", (1, 577, 768)),
    ("vit-b16-224", "patch_embed.proj.weight", (768, 3, 16, 16)),
    ("vit-b16-224", "blocks.11.attn.qkv.weight", (2304, 768)),
    ("vit-b16-224", "blocks.0.attn.proj.bias", (768,)),
    ("vit-b16-224", "blocks.0.mlp.fc1.weight", (3072, 768)),
    ("vit-b16-224", "norm.weight", (768,)),
    ("vit-s4-32", "pos_embed", (1, 65, 384)),
    ("vit-s4-32", "head.weight", (10, 384)),
]

BLOCKS = {
    "wrn-16-1": ("block1", "block2", "block3"),
    "resnext29-4x32": ("stage_1", "stage_2", "stage_3"),
    "resnet18": ("layer1", "layer2", "layer3", "layer4"),
    "vit-s4-32": ("blocks.0-3", "blocks.4-7", "blocks.8-11"),
}


def on_meta(name: str, num_classes: int = 10) -> Backbone:
    with torch.device("meta"):
        return create(name, num_classes=num_classes)


@pytest.mark.parametrize(("name", "num_classes", "count"), PARAMETERS)
def test_parameter_count(name: str, num_classes: int, count: int) -> None:
    assert sum(p.numel() for p in on_meta(name, num_classes).parameters()) == count


@pytest.mark.parametrize(("name", "key", "shape"), FACTS)
def test_key_and_shape(name: str, key: str, shape: tuple[int, ...]) -> None:
    assert tuple(on_meta(name).state_dict()[key].shape) == shape


def test_every_key_of_a_small_wide_resnet() -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{part}" for part in norm)}
    for stage in (1, 2, 3):
        for layer in (0, 1):
            at = f"block{stage}.layer.{layer}"
            expected |= {f"{at}.conv1.weight", f"{at}.conv2.weight"}
            expected |= {f"{at}.{bn}.{part}" for bn in ("bn1", "bn2") for part in norm}
    # Width 1: the first stage keeps its 16 channels and needs no projection.
    expected |= {f"block{stage}.layer.0.convShortcut.weight" for stage in (2, 3)}
    assert set(on_meta("wrn-16-1").state_dict()) == expected


@pytest.mark.parametrize("name", names())
def test_what_every_backbone_promises(name: str) -> None:
    model = on_meta(name, 7)
    assert (model.name, model.num_classes, model.input.channels) == (name, 7, 3)
    assert len(model.block_names) in (3, 4)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert fitting(shapes) == f"fits {name!r} with 7 classes"


@pytest.mark.parametrize(("name", "blocks"), BLOCKS.items())
def test_block_names(name: str, blocks: tuple[str, ...]) -> None:
    assert on_meta(name).block_names == blocks


@pytest.mark.parametrize(
    ("depth", "blocks"),
    [
        (1, ("blocks.0",)),
        (2, ("blocks.0", "blocks.1")),
        (3, ("blocks.0", "blocks.1", "blocks.2")),
        (5, ("blocks.0-1", "blocks.2", "blocks.3-4")),
        (24, ("blocks.0-7", "blocks.8-15", "blocks.16-23")),
    ],
)
def test_blocks_of_any_depth(depth: int, blocks: tuple[str, ...]) -> None:
    model = VisionTransformer(size=8, patch=4, width=4, depth=depth, heads=1, num_classes=2)
    assert model.block_names == blocks


def test_names_nobody_listed() -> None:
    assert on_meta("wrn-22-3").name == "wrn-22-3"
    with pytest.raises(UnknownNameError, match=r"'wrn-16-2'|'wrn-16-1'"):
        create("wrn-17-2", num_classes=10)
    with pytest.raises(UnknownNameError, match="'resnet50'"):
        create("resnet5", num_classes=10)
    with pytest.raises(ConfigError, match="at least one class"):
        create("wrn-16-1", num_classes=0)
    with pytest.raises(ConfigError, match="6n \\+ 4"):
        WideResNet(17, 2, num_classes=10)
    with pytest.raises(ConfigError, match="multiple of the patch"):
        VisionTransformer(size=10, patch=4, width=4, depth=1, heads=1, num_classes=2)


SMALL = [
    WideResNet(10, 1, num_classes=5),
    ResNeXt29(num_classes=5),
    ResNet(BasicBlock, (1, 1, 1, 1), num_classes=5, name="small"),
    ResNet(Bottleneck, (1, 1, 1, 1), num_classes=5, name="small"),
    VisionTransformer(size=32, patch=8, width=24, depth=3, heads=2, num_classes=5),
]


@pytest.mark.parametrize("model", SMALL, ids=lambda m: type(m).__name__)
def test_the_model_normalises_its_own_input(model: Backbone) -> None:
    model.eval()
    x = torch.rand(2, 3, 32, 32)
    plain = dataclasses.replace(model.input, mean=None, std=None)
    with torch.no_grad():
        logits = model(x)
        normalised, own = model.input.normalise(x), model.input
        model.input = plain
        by_hand = model(normalised)
        model.input = own
    assert logits.shape == (2, 5)
    assert torch.equal(logits, by_hand)


def test_which_normalisation() -> None:
    assert on_meta("wrn-28-10").input.mean is None
    assert on_meta("resnext29-4x32").input == HALF
    assert on_meta("resnet50").input == IMAGENET
    assert on_meta("vit-b16-224").input == dataclasses.replace(HALF, size=224)


def test_version_1_5_strides_in_the_3x3() -> None:
    block = on_meta("resnet50").get_submodule("layer2.0")
    assert isinstance(block, Bottleneck)
    assert block.conv1.stride == (1, 1)
    assert block.conv2.stride == (2, 2)


def test_vit_block_against_torchs_own_layer() -> None:
    """nn.TransformerEncoderLayer is an independent writing of the same pre-norm block."""
    ours = Block(24, 3, 4.0).double()
    theirs = nn.TransformerEncoderLayer(
        24, 3, 96, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).double()
    names = {
        "norm1": "norm1", "norm2": "norm2", "attn.proj": "self_attn.out_proj",
        "mlp.fc1": "linear1", "mlp.fc2": "linear2",
    }  # fmt: skip
    for mine, other in names.items():
        theirs.get_submodule(other).load_state_dict(ours.get_submodule(mine).state_dict())
    theirs.self_attn.in_proj_weight.data = ours.attn.qkv.weight.data
    theirs.self_attn.in_proj_bias.data = ours.attn.qkv.bias.data
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    assert torch.allclose(ours(x), theirs(x), atol=1e-12)  # double precision, a few sums


def test_vit_says_which_size_it_takes() -> None:
    model = VisionTransformer(size=8, patch=4, width=4, depth=1, heads=1, num_classes=2)
    with pytest.raises(InputError, match=r"8 x 8 px but was given 16 x 16"):
        model(torch.rand(1, 3, 16, 16))


def test_import_is_light() -> None:
    code = (
        "import sys, bombus.backbones\n"
        "print([m for m in ('safetensors', 'PIL', 'rich', 'tyro', 'timm') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
