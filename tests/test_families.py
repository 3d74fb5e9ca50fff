"""Which settings a network gets that nobody described: a transformer's or a CNN's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.backbones.blocks import family_of
from bombus.errors import ConfigError
from tiny import make_tiny, noise_batches


class Normalise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


class Attention(nn.Module):
    """Layers of these names; all it does is to apply them."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class Tokens(nn.Module):
    """Patches, then these modules one after the other, then a mean of all tokens."""

    def __init__(self, *modules: nn.Module, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.conv_proj, self.layers, self.norm = (
            nn.Conv2d(3, 8, 4, 4),
            nn.ModuleList(modules),
            norm(8),
        )
        self.head = nn.Linear(8, 5)


def torch_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16)


def bert_layer() -> nn.Module:
    return Attention("query", "key", "value")


def llama_layer() -> nn.Module:
    return Attention("q_proj", "k_proj", "v_proj", "o_proj")


def window() -> nn.Module:
    return Attention("qkv", "proj")


@pytest.mark.parametrize("layer", [torch_layer, bert_layer, llama_layer, window])
def test_attention_makes_a_transformer_whatever_it_is_called(layer: Any) -> None:
    for wrap in (lambda m: m, nn.DataParallel, lambda m: nn.Sequential(Normalise(), m)):
        model = wrap(Tokens(layer(), layer()))
        assert bombus.known_methods()["tent"].Config.for_network(model).lr == 3e-5  # type: ignore[attr-defined]
    assert family_of(Tokens(layer(), layer(), norm=nn.BatchNorm1d)) == "cnn"  # as a CLIP ResNet
    assert family_of(Tokens(layer())) == "cnn"  # a pooling
    assert family_of(Tokens(nn.Linear(8, 8), nn.Linear(8, 8))) == "cnn"  # as ConvNeXt
    for kind in ("batchnorm", "groupnorm", "speck"):
        assert family_of(make_tiny(kind)) == "cnn"


@pytest.mark.parametrize("method", ["tent", "bee", "bee-paper", "cotta"])
def test_a_transformer_behind_a_normalisation_gets_its_own_settings(method: str) -> None:
    vit, wrapped = make_tiny("vit"), nn.Sequential(nn.Identity(), make_tiny("vit"))
    plain, other = bombus.adapt(vit, method), bombus.adapt(wrapped, method)
    for x in noise_batches(2):
        assert torch.equal(plain(x), other(x))
    assert plain.config == other.config


@pytest.mark.parametrize("method", ["vida", "continual-mae"])
def test_what_works_inside_a_transformer_asks_for_it_alone(method: str) -> None:
    with pytest.raises(ConfigError, match=f"^{method} works inside a vision transformer") as caught:
        bombus.adapt(nn.Sequential(Normalise(), make_tiny("vit")), method)
    assert "give the VisionTransformer itself" in str(caught.value)
    assert "\n" not in str(caught.value)
