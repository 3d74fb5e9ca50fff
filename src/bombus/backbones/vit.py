"""Vision transformers of any size (Dosovitskiy et al., ICLR 2021, https://arxiv.org/abs/2010.11929).

Pre-norm blocks, learnt positions, class token readout. Parameters carry timm's names. The usual
input is (x - 0.5) / 0.5; the published ViT tables of continual adaptation were made without it,
which setting `model.input` to an Input without mean and std reproduces.

Shapes: N images, T = 1 + grid * grid tokens, D width, H heads.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bombus.backbones.blocks import Backbone
from bombus.backbones.input import HALF, Input
from bombus.backbones.stages import thirds
from bombus.errors import ConfigError, InputError

EPS = 1e-6


class PatchEmbed(nn.Module):
    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(x)
        return out.flatten(2).transpose(1, 2)  # (N, T - 1, D)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        qkv = self.qkv(x).view(n, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (N, H, T, D/H)
        out = F.scaled_dot_product_attention(q, k, v)
        mixed: Tensor = self.proj(out.transpose(1, 2).reshape(n, t, d))
        return mixed


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPS)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=EPS)
        self.mlp = Mlp(width, int(width * mlp_ratio))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(Backbone):
    def __init__(
        self,
        *,
        size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        num_classes: int,
        mlp_ratio: float = 4.0,
        name: str = "",
        input: Input = HALF,
    ) -> None:
        if min(size, patch, width, depth, heads) < 1 or size % patch or width % heads:
            raise ConfigError(
                f"A vision transformer for {size} px with patch {patch}, width {width}, depth "
                f"{depth} and {heads} heads cannot be built; all must be positive, the size a "
                "multiple of the patch, the width a multiple of the heads."
            )
        super().__init__(
            name=name or f"vit-p{patch}-w{width}-d{depth}-{size}",
            num_classes=num_classes,
            input=dataclasses.replace(input, size=size),
            block_names=thirds("blocks.", range(depth)),
        )
        self.size = size
        self.patch_embed = PatchEmbed(patch, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.head = nn.Linear(width, num_classes)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.size, self.size):
            raise InputError(
                f"{self.name} takes images of {self.size} x {self.size} px but was given "
                f"{x.shape[-2]} x {x.shape[-1]}; resize them first."
            )
        x = self.patch_embed(self.input.normalise(x))
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        out: Tensor = self.head(self.norm(self.blocks(x))[:, 0])  # (N, classes)
        return out


def resize_positions(positions: Tensor, tokens: int) -> Tensor | None:
    """(1, T, D) position embeddings on another square grid; None if either grid is not square.

    The class token's own position stays as it is; the rest is an image and is resized like one
    (bicubic with antialiasing, as timm does it).
    """
    old, new = math.isqrt(positions.shape[1] - 1), math.isqrt(tokens - 1)
    if old * old != positions.shape[1] - 1 or new * new != tokens - 1 or not old or not new:
        return None
    grid = positions[:, 1:].float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", antialias=True)
    grid = grid.permute(0, 2, 3, 1).reshape(1, new * new, -1).to(positions.dtype)
    return torch.cat([positions[:, :1], grid], dim=1)


def vit_b16(size: int, *, num_classes: int) -> VisionTransformer:
    return VisionTransformer(
        size=size,
        patch=16,
        width=768,
        depth=12,
        heads=12,
        num_classes=num_classes,
        name=f"vit-b16-{size}",
    )


def vit_demo(*, num_classes: int) -> VisionTransformer:
    """Small enough to travel with the package."""
    return VisionTransformer(
        size=32,
        patch=4,
        width=128,
        depth=6,
        heads=4,
        mlp_ratio=2.0,
        num_classes=num_classes,
        name="vit-demo",
    )


def vit_s4(size: int, *, num_classes: int) -> VisionTransformer:
    return VisionTransformer(
        size=size,
        patch=4,
        width=384,
        depth=12,
        heads=6,
        num_classes=num_classes,
        name=f"vit-s4-{size}",
    )
