"""Blocks of our networks and of networks nobody described; their outputs in one forward."""

from __future__ import annotations

import threading
import weakref
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as torch_module

from bombus.backbones import Backbone, create, names
from bombus.backbones.blocks import block_parameters, find_blocks, forward_with_blocks, look
from bombus.backbones.vit import VisionTransformer
from bombus.backbones.wide_resnet import WideResNet
from bombus.errors import ConfigError

# --- networks as a user might write them -----------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.norm = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.skip(x) + self.conv2(self.norm(self.conv1(x)).relu())
        return out


class PlainResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.layer1 = nn.Sequential(Residual(4, 4), Residual(4, 4))
        self.layer2 = nn.Sequential(Residual(4, 8, 2), Residual(8, 8))
        self.layer3 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        out: Tensor = self.classifier(self.pool(x).flatten(1))
        return out


class PlainViT(nn.Module):
    """With torch's own layers, whose fast path a careless hook would switch off."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.patches(x).flatten(2).mT).mean(1))
        return out


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


def pile() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 4), (4, 4), (4, 8), (8, 8)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def stages(widths: tuple[int, ...]) -> nn.Module:
    model = nn.Module()
    model.stem = nn.Conv2d(3, widths[0], 3)
    pairs = pairwise(widths)
    model.stages = nn.ModuleList([nn.Sequential(Residual(a, b), Residual(b, b)) for a, b in pairs])
    model.head = nn.Linear(widths[-1], 2)
    return model


def named_layers(count: int) -> nn.Module:
    """As torchvision names a ViT's: encoder.layers.encoder_layer_0, ..."""
    model = nn.Module()
    model.conv_proj = nn.Conv2d(3, 4, 4)
    model.encoder = nn.Module()
    layers = {f"encoder_layer_{i}": nn.TransformerEncoderLayer(4, 1, 8) for i in range(count)}
    model.encoder.layers = nn.ModuleDict(layers)
    model.heads = nn.Sequential(nn.Linear(4, 2))
    return model


# --- finding ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_our_own(name: str) -> None:
    with torch.device("meta"):
        model = create(name, num_classes=10)
        assert find_blocks(model) == model.block_names
        wrapped = tuple(f"model.{block}" for block in model.block_names)
        assert find_blocks(Wrapped(model)) == wrapped


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (PlainResNet(), ("layer1", "layer2", "layer3")),
        (Wrapped(PlainResNet()), ("model.layer1", "model.layer2", "model.layer3")),
        (PlainViT(6), tuple(f"encoder.layers.{run}" for run in ("0-1", "2-3", "4-5"))),
        (PlainViT(2), ("encoder.layers.0", "encoder.layers.1")),
        (pile(), ("0-1", "2-5", "6-8")),
        (stages((2, 3, 4, 5)), ("stages.0", "stages.1", "stages.2")),
        (stages(tuple(range(2, 14))), ("stages.0-3", "stages.4-6", "stages.7-10")),
        (
            named_layers(3),
            tuple(f"encoder.layers.encoder_layer_{i}" for i in range(3)),
        ),
        (
            named_layers(12),
            tuple(f"encoder.layers.encoder_layer_{run}" for run in ("0-3", "4-7", "8-11")),
        ),
        (nn.ModuleDict({"stem": nn.Conv2d(3, 4, 3), "only": Residual(4, 4)}), ("only",)),
    ],
)
def test_found_by_itself(model: nn.Module, blocks: tuple[str, ...]) -> None:
    assert find_blocks(model) == blocks


def test_nothing_to_find() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(
        ConfigError, match=r'blocks=\("name", "name"\) \(at the top there are: 0, 1, 2, 3\)'
    ):
        find_blocks(model)


def test_given_names_are_checked() -> None:
    model = PlainResNet()
    assert find_blocks(model, ["layer2", "layer1.0-1"]) == ("layer2", "layer1.0-1")
    with pytest.raises(ConfigError, match=r"no module 'layr2'; nearest: layer2"):
        find_blocks(model, ["layr2"])
    with pytest.raises(ConfigError, match=r"no module 'layer1\.2'; nearest: layer1"):
        find_blocks(model, ["layer1.0-2"])
    with pytest.raises(ConfigError, match=r"no module 'layer1\.1-0'"):
        find_blocks(model, ["layer1.1-0"])
    with pytest.raises(ConfigError, match="top-level modules: stem, layer1"):
        find_blocks(model, [""])
    with pytest.raises(ConfigError, match="empty list"):
        find_blocks(model, [])
    with pytest.raises(ConfigError, match="'layer1' was given twice"):
        find_blocks(model, ["layer1", "layer1"])


# --- outputs ---------------------------------------------------------------------------------


def tiny_vit() -> VisionTransformer:
    return VisionTransformer(size=16, patch=4, width=8, depth=12, heads=2, num_classes=3)


MODELS = [WideResNet(10, 1, num_classes=3), tiny_vit(), PlainResNet(), PlainViT(), pile()]
x = torch.rand(2, 3, 16, 16)


def hooks() -> int:
    return len(torch_module._global_forward_hooks)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_logits_do_not_change_by_a_bit(model: nn.Module, grad: bool) -> None:
    model.eval()
    blocks = find_blocks(model)
    with torch.set_grad_enabled(grad):
        logits, outputs = forward_with_blocks(model, x, blocks)
        assert torch.equal(logits, model(x))
    assert tuple(outputs) == blocks
    assert all(out.requires_grad == grad for out in outputs.values())
    assert hooks() == 0


def test_torchs_transformer_layers_keep_their_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    kernel = torch._transformer_encoder_layer_fwd

    def counted(*args: Any) -> Tensor:
        calls.append(1)
        return kernel(*args)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    model = PlainViT(6).eval()
    with torch.no_grad():
        forward_with_blocks(model, x, find_blocks(model))
    assert len(calls) == 6


def test_outputs_are_those_of_the_blocks() -> None:
    model = MODELS[0].eval()
    assert isinstance(model, WideResNet)
    _, outputs = forward_with_blocks(model, x, ["block1", "block2", "block3"])
    assert torch.equal(outputs["block1"], model.block1(model.conv1(x)))
    assert torch.equal(outputs["block3"], model.block3(outputs["block2"]))
    assert [tuple(out.shape) for out in outputs.values()] == [
        (2, 16, 16, 16),
        (2, 32, 8, 8),
        (2, 64, 4, 4),
    ]


def test_a_run_gives_its_last_blocks_output() -> None:
    model = tiny_vit().eval()
    _, outputs = forward_with_blocks(model, x, ["blocks.0-3", "blocks.3", "blocks.4"])
    assert torch.equal(outputs["blocks.0-3"], outputs["blocks.3"])
    assert torch.equal(outputs["blocks.4"], model.blocks[4](outputs["blocks.0-3"]))


def test_gradients_reach_only_what_lies_before() -> None:
    model = PlainResNet()
    logits, outputs = forward_with_blocks(model, x, ["layer1", "layer2"])
    outputs["layer1"].square().mean().backward(retain_graph=True)
    touched = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert touched == {"stem", "layer1"}
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_under_autocast() -> None:
    model = tiny_vit().eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits, _ = forward_with_blocks(model, x, model.block_names)
        assert logits.dtype == torch.bfloat16
        assert torch.equal(logits, model(x))


@pytest.mark.parametrize("model", [MODELS[0], MODELS[1]], ids=lambda m: type(m).__name__)
def test_other_parameters_as_if_loaded(model: Backbone) -> None:
    model.eval()
    other = {key: value + 0.01 for key, value in model.named_parameters()}
    logits, outputs = forward_with_blocks(model, x, model.block_names, params=other)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert torch.equal(logits, functional_call(model, other, (x,)))
    model.load_state_dict(before | other)
    loaded, loaded_outputs = forward_with_blocks(model, x, model.block_names)
    model.load_state_dict(before)
    assert torch.equal(logits, loaded)
    assert all(torch.equal(outputs[name], loaded_outputs[name]) for name in outputs)


def test_gradients_to_other_parameters() -> None:
    model = PlainResNet()
    shifted = {
        k: p.detach().clone().requires_grad_()
        for k, p in block_parameters(model, ["layer1"]).items()
    }
    _, outputs = forward_with_blocks(model, x, ["layer1"], params=shifted)
    outputs["layer1"].sum().backward()
    assert all(p.grad is not None for p in shifted.values())
    assert all(p.grad is None for p in model.layer1.parameters())


class Fails(PlainResNet):
    def forward(self, x: Tensor) -> Tensor:
        self.layer1(self.stem(x))
        raise RuntimeError("on purpose")


def test_hooks_are_gone_after_an_exception() -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        forward_with_blocks(Fails(), x, ["layer1"])
    assert hooks() == 0


class Nested(PlainResNet):
    """Looks at itself on another image in the middle of its own forward."""

    inner: dict[str, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.stem(x))
        if self.inner is None:
            self.inner = {}
            _, self.inner = forward_with_blocks(self, torch.zeros(2, 3, 16, 16), ["layer1"])
        out: Tensor = self.classifier(self.pool(self.layer3(self.layer2(x))).flatten(1))
        return out


def test_a_forward_inside_a_forward() -> None:
    model = Nested().eval()
    _, outputs = forward_with_blocks(model, x, ["layer1"])
    assert model.inner is not None
    assert torch.equal(outputs["layer1"], model.layer1(model.stem(x)))
    assert torch.equal(model.inner["layer1"], model.layer1(model.stem(torch.zeros(2, 3, 16, 16))))


def test_two_threads_on_one_model() -> None:
    model = PlainResNet().eval()
    images = [torch.rand(2, 3, 16, 16) for _ in range(4)]
    found: dict[int, Tensor] = {}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = forward_with_blocks(model, images[i], ["layer2"])[1]["layer2"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, image in enumerate(images):
        assert torch.equal(found[i], model.layer2(model.layer1(model.stem(image))))
    assert hooks() == 0


def test_what_is_no_block_output() -> None:
    model = PlainResNet()
    model.unused = nn.Sequential(Residual(4, 4))
    with pytest.raises(ConfigError, match="'unused' took no part"):
        forward_with_blocks(model, x, ["unused"])

    class Texts(Wrapped):
        def forward(self, x: Tensor) -> Any:
            super().forward(x)
            return "a cat"

    with pytest.raises(ConfigError, match="with a str, expected one tensor"):
        forward_with_blocks(Texts(model), x, ["model.layer1"])


def test_the_classifier_is_no_block() -> None:
    model = WideResNet(10, 1, num_classes=3)
    with pytest.raises(ConfigError, match="'fc' is the classifier"):
        forward_with_blocks(model, torch.rand(2, 3, 32, 32), ["block1", "fc"])


class Memory(nn.Module):
    """Counts how many outputs of its layers are still alive when the last one has run."""

    def __init__(self, squeeze: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
        self.head, self.squeeze = nn.Linear(4, 3), squeeze

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[:, 0, :, :4]  # (N, T, 4)
        seen = []
        for layer in self.layers:
            tokens = layer(tokens)
            seen.append(weakref.ref(tokens))
        self.alive = sum(ref() is not None for ref in seen)
        logits: Tensor = self.head(tokens.mean(1, keepdim=self.squeeze))
        return logits.squeeze_(1) if self.squeeze else logits


@pytest.mark.parametrize("squeeze", [False, True])
def test_tokens_are_let_go_and_the_classifier_is_found(squeeze: bool) -> None:
    model = Memory(squeeze)
    with torch.no_grad():
        seen = look(model, x)
    assert model.alive == 1  # the last one's own
    assert seen.classifier is model.head
    assert seen.features is not None
    assert torch.equal(model.head(seen.features).view(len(x), 3), seen.logits)


def test_a_list_of_modules_gives_its_lasts_output() -> None:
    model = PlainViT(3).eval()
    _, outputs = forward_with_blocks(model, x, ["encoder.layers", "encoder.layers.2"])
    assert torch.equal(outputs["encoder.layers"], outputs["encoder.layers.2"])


# --- parameters ------------------------------------------------------------------------------


def test_parameters_by_whole_path_components() -> None:
    model = tiny_vit()
    layers = {name.split(".")[1] for name in block_parameters(model, ["blocks.1"])}
    assert layers == {"1"}
    layers = {name.split(".")[1] for name in block_parameters(model, ["blocks.8-11"])}
    assert layers == {"8", "9", "10", "11"}
    assert list(block_parameters(model, ["blocks.1", "blocks.0"])) == [
        name for name, _ in model.named_parameters() if name.startswith(("blocks.0.", "blocks.1."))
    ]
    own = dict(model.named_parameters())
    assert all(p is own[name] for name, p in block_parameters(model, model.block_names).items())
    with pytest.raises(ConfigError, match=r"no module 'blocks\.12'"):
        block_parameters(model, ["blocks.12"])
