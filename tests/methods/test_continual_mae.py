"""Continual-MAE by hand, in float64: the transformer, the mask, the losses, the update."""

from __future__ import annotations

import math
import statistics
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bombus
from bombus.backbones.vit import VisionTransformer
from bombus.data.augment import cotta_view
from bombus.errors import ConfigError
from bombus.methods import continual_mae, place
from bombus.methods.continual_mae import (
    ContinualMae,
    forward_with_patches,
    least_certain,
    patch_side,
)
from bombus.methods.cotta import chosen_positions
from bombus.metrics.passes import PassCounter
from by_hand import Descent, Params, parameters_of
from tiny import make_tiny, noise_batches, tree_hash

SIDE, PATCH, WIDTH, DEPTH, HEADS, CLASSES = 12, 4, 6, 2, 2, 3
PATCHES = (SIDE // PATCH) ** 2


def small(dtype: torch.dtype = torch.float64, **shape: int) -> VisionTransformer:
    """Every parameter random: an untrained final norm would make all channel means zero."""
    usual = {"size": SIDE, "patch": PATCH, "width": WIDTH, "depth": DEPTH, "heads": HEADS}
    model = VisionTransformer(**{**usual, **shape}, num_classes=CLASSES).to(dtype)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, p in model.named_parameters():
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            p.copy_(centre + 0.5 * torch.randn(p.shape, generator=generator))
    return model.eval()


def adapter_of(model: nn.Module | None = None, **settings: Any) -> ContinualMae:
    usual = {"lr": 0.01, "augmentations": 3, "restore": 0.2, "seed": 7}
    return ContinualMae(model or small(), ContinualMae.Config(**{**usual, **settings}))


def pictures(count: int, size: int = 4, side: int = SIDE) -> list[Tensor]:
    """Of 256 levels, so that no histogram hangs on a rounding; the last batch is shorter."""
    generator = torch.Generator().manual_seed(5)
    shape = (size, 3, side, side)
    batches = [torch.randint(256, shape, generator=generator).double() / 256 for _ in range(count)]
    batches[-1] = batches[-1][: size // 2]
    return batches


# The transformer, written out


def layer_norm(p: Params, name: str, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-6).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p: Params, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def attention(p: Params, name: str, x: Tensor) -> Tensor:
    q, k, v = linear(p, f"{name}.qkv", x).split(WIDTH, -1)
    d = WIDTH // HEADS
    heads = []
    for h in range(HEADS):
        here = slice(h * d, (h + 1) * d)
        scores = q[..., here] @ k[..., here].transpose(1, 2) / math.sqrt(d)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        heads.append(weights @ v[..., here])
    return linear(p, f"{name}.proj", torch.cat(heads, -1))


def transformer(
    p: Params, x: Tensor, hidden: list[list[int]] | None = None
) -> tuple[Tensor, Tensor]:
    """Logits (N, C) and final patch tokens (N, T, D); of each image these patches are hidden."""
    grid = SIDE // PATCH
    x = (x - 0.5) / 0.5
    tokens = []
    for place_ in range(PATCHES):
        i, j = place_ // grid * PATCH, place_ % grid * PATCH
        pixels = x[:, :, i : i + PATCH, j : j + PATCH].flatten(1)
        embedded = pixels @ p["patch_embed.proj.weight"].flatten(1).T + p["patch_embed.proj.bias"]
        if hidden is not None:
            embedded = torch.stack(
                [p["token"] if place_ in hidden[n] else embedded[n] for n in range(len(x))]
            )
        tokens.append(embedded)
    first = p["cls_token"][0].expand(len(x), WIDTH)
    out = torch.stack([first, *tokens], 1) + p["pos_embed"]
    for b in range(DEPTH):
        out = out + attention(p, f"blocks.{b}.attn", layer_norm(p, f"blocks.{b}.norm1", out))
        inner = linear(p, f"blocks.{b}.mlp.fc1", layer_norm(p, f"blocks.{b}.norm2", out))
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        out = out + linear(p, f"blocks.{b}.mlp.fc2", inner)
    out = layer_norm(p, "norm", out)
    return linear(p, "head", out[:, 0]), out[:, 1:]


def histograms(x: Tensor) -> Tensor:
    """The histograms of patches (N, T, 108), by convolutions and one-hot votes."""
    sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=x.dtype)
    single = F.pad(x, (1, 1, 1, 1), mode="reflect").flatten(0, 1)[:, None]
    right, down = (F.conv2d(single, k[None, None])[:, 0] for k in (sobel, sobel.T))
    right, down = (torch.round(g * 256) / 256 for g in (right, down))
    ninths = (torch.rad2deg(torch.atan2(right, down)) / 20).floor().long() % 9
    votes = F.one_hot(ninths, 9) * (right**2 + down**2).sqrt()[..., None]  # (3N, H, W, 9)
    half = PATCH // 2
    cells = votes.unfold(1, half, half).unfold(2, half, half).sum((-1, -2))
    cells = cells / (cells**2).sum(-1, keepdim=True).sqrt().clamp_min(1e-12)
    grid = SIDE // PATCH
    cells = cells.view(len(x), 3, grid, 2, grid, 2, 9)
    return cells.permute(0, 2, 4, 1, 6, 3, 5).reshape(len(x), PATCHES, 108)


class ByHand:
    def __init__(self, adapter: ContinualMae) -> None:
        self.config = config = adapter.config
        self.generator = torch.Generator().manual_seed(config.seed)
        self.params = parameters_of(small())
        self.params["token"] = torch.zeros(WIDTH, dtype=torch.float64)
        drawn = 0.02 * torch.randn(108, WIDTH, generator=self.generator)
        self.params["hog.weight"] = drawn.double()
        self.params["hog.bias"] = torch.zeros(108, dtype=torch.float64)
        self.source = {
            name: p
            for name, p in parameters_of(small()).items()
            if name not in ("cls_token", "pos_embed")
        }
        self.descent = Descent(config.optimizer, config.lr)
        self.signals: dict[str, float] = {}

    def hidden(self, x: Tensor) -> list[list[int]]:
        views = [
            transformer(self.params, cotta_view(x, self.generator, per_sample=False))[1]
            for _ in range(self.config.augmentations)
        ]
        rows, total = [], 0.0
        for n in range(len(x)):
            spread = [
                statistics.variance(float(view[n, t].sum()) / WIDTH for view in views)
                for t in range(PATCHES)
            ]
            total += sum(spread) / PATCHES / len(x)
            ranked = sorted(range(PATCHES), key=lambda t: -spread[t])
            rows.append(ranked[: int(PATCHES * self.config.mask_ratio)])
        self.signals["uncertainty"] = total
        return rows

    def see(self, x: Tensor) -> Tensor:
        answer = transformer(self.params, x)[0]
        hidden = self.hidden(x)
        truth, targets = answer.softmax(1), histograms(x)
        frozen = {name: self.params[name] for name in ("cls_token", "pos_embed")}
        trained = {name: p for name, p in self.params.items() if name not in frozen}

        def loss(p: Params) -> Tensor:
            logits, tokens = transformer({**p, **frozen}, x, hidden)
            log_p = logits - logits.exp().sum(1, keepdim=True).log()
            consistency = -(truth * log_p).sum() / len(x)
            errors = [
                (linear(p, "hog", tokens[n, t]) - targets[n, t]) ** 2
                for n in range(len(x))
                for t in hidden[n]
            ]
            hog = torch.cat(errors).mean()
            self.signals |= {"consistency": consistency.item(), "hog": hog.item()}
            return consistency + self.config.hog_weight * hog

        self.descent.step(trained, loss)
        self.params = {**trained, **frozen}
        count = sum(p.numel() for p in self.source.values())
        back = set(chosen_positions(count, self.config.restore, self.generator).tolist())
        start = 0
        for name, source in self.source.items():
            flat = self.params[name].flatten().clone()
            for i in range(len(flat)):
                if start + i in back:
                    flat[i] = source.flatten()[i]
            start += len(flat)
            self.params[name] = flat.view(source.shape)
        return answer


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_update_by_hand(optimizer: str, steps: int) -> None:
    adapter = adapter_of(optimizer=optimizer, mask_ratio=0.6, hog_weight=0.7)
    hand = ByHand(adapter)
    before = dict(hand.params)
    for x in pictures(3)[-steps:]:
        logits, expected = adapter(x), hand.see(x)
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        assert adapter.last.signals == pytest.approx(hand.signals, rel=1e-9)
    own = {**parameters_of(adapter.model), **parameters_of(adapter.decoder)}
    assert set(own) == set(hand.params)
    for name, p in own.items():
        torch.testing.assert_close(p, hand.params[name], rtol=1e-9, atol=1e-9)
        assert torch.equal(p, before[name]) == (name in ("cls_token", "pos_embed")), name


# Looking into a transformer


def random_mask(images: int, patches: int) -> Tensor:
    return torch.rand(images, patches, generator=torch.Generator().manual_seed(6)) < 0.5


def test_the_token_takes_the_place_of_hidden_patches() -> None:
    model = small()
    x = pictures(2)[0]
    token = torch.arange(WIDTH, dtype=torch.float64) - 2
    params = {**parameters_of(model), "token": token}
    mask = random_mask(len(x), PATCHES)
    places = [row.nonzero().flatten().tolist() for row in mask]
    assert len({len(row) for row in places}) > 1
    for given, hidden in (((), None), ((mask, token), places)):
        logits, tokens = forward_with_patches(model, x, *given)
        for found, expected in zip((logits, tokens), transformer(params, x, hidden), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(logits, model(x))


class Embedding(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.norm(self.proj(x).flatten(2).transpose(1, 2))


class Registers(nn.Module):
    """Somebody's transformer: two more tokens in front, positions of patches only, mean readout."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = Embedding(2.0)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.registers = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, PATCHES, WIDTH))
        self.blocks = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.uniform_(self.norm.weight)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x) + self.pos_embed
        before = torch.cat([self.cls_token, self.registers], 1).expand(len(x), -1, -1)
        logits: Tensor = self.head(self.norm(self.blocks(torch.cat([before, x], 1))).mean(1))
        return logits


def registers() -> Registers:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Registers().eval()


def test_another_transformers_patches_are_found() -> None:
    model = registers()
    x = pictures(2)[0].float()
    token = torch.arange(WIDTH) / 3
    mask = random_mask(len(x), PATCHES)
    _, tokens = forward_with_patches(model, x, mask, token)
    embedded = torch.where(mask[:, :, None], token, model.patch_embed(x))
    expected = model.norm(model.blocks(embedded + model.pos_embed))
    torch.testing.assert_close(tokens, expected)


def test_another_transformer_adapts() -> None:
    model = registers()
    adapter = adapter_of(model, restore=0.0)
    for x in pictures(2):
        with torch.no_grad():
            expected = adapter.model(x.float())
        assert torch.equal(adapter(x.float()), expected)
    moved = [
        n
        for n, p in adapter.model.named_parameters()
        if not torch.equal(p, dict(model.named_parameters())[n])
    ]
    assert {n.rpartition(".")[2] for n in moved} == {"weight", "bias"}


def test_no_hook_stays() -> None:
    adapter = adapter_of()
    x, _ = pictures(2)

    def hooks() -> int:
        return sum(len(m._forward_hooks) for m in adapter.model.modules())

    before = hooks()
    adapter(x)
    assert hooks() == before
    with pytest.raises(bombus.BombusError, match="resize"):
        forward_with_patches(adapter.model, x[..., :8, :8])
    assert hooks() == before
    assert torch.equal(deepcopy(adapter.model)(x), adapter.predict(x))


def test_a_transformer_without_rows_of_tokens_is_refused() -> None:
    class Maps(Embedding):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).view(len(x), 3, 3, WIDTH)

    class Wrong(Registers):
        def __init__(self) -> None:
            super().__init__()
            self.patch_embed = Maps(1.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.patch_embed(x)).mean((1, 2)))

    x = pictures(2)[0].float()
    adapter = adapter_of(Wrong())
    before = tree_hash(adapter.state_dict())
    with pytest.raises(ConfigError, match="do not give tokens") as caught:
        adapter(x)
    assert "\n" not in str(caught.value)
    assert tree_hash(adapter.state_dict()) == before
    unplaced = registers()
    unplaced.pos_embed = None
    with pytest.raises(ConfigError, match="are no tensor"):
        adapter_of(unplaced)


def test_a_convolutional_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^continual-mae works inside a vision transformer"):
        ContinualMae(make_tiny("batchnorm"))


@pytest.mark.parametrize(
    ("height", "width", "patches", "side"),
    [(384, 384, 576, 16), (32, 32, 64, 4), (16, 24, 6, 8), (28, 28, 4, 14), (4, 4, 1, 4)],
)
def test_side_of_a_patch(height: int, width: int, patches: int, side: int) -> None:
    assert patch_side(torch.empty(1, 3, height, width), patches) == side


@pytest.mark.parametrize(
    ("height", "width", "patches"), [(9, 9, 9), (32, 32, 49), (8, 8, 100), (4, 16, 1), (6, 6, 4)]
)
def test_patches_without_four_equal_cells_are_refused(
    height: int, width: int, patches: int
) -> None:
    with pytest.raises(ConfigError, match=f"{height} x {width} px makes {patches} patches"):
        patch_side(torch.empty(1, 3, height, width), patches)


def test_a_network_of_odd_patches_learns_nothing() -> None:
    adapter = adapter_of(small(patch=3))
    before = tree_hash(adapter.state_dict())
    with pytest.raises(ConfigError, match="even number of pixels"):
        adapter(pictures(1)[0])
    assert tree_hash(adapter.state_dict()) == before


# What is hidden


def test_the_largest_are_hidden_and_of_equals_the_first() -> None:
    spread = torch.tensor([[0.1, 0.9, 0.3, 0.9, 0.2], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert least_certain(spread, 0.5).tolist() == [
        [False, True, False, True, False],
        [True, True, False, False, False],
    ]
    assert least_certain(spread, 0.99).sum(1).tolist() == [4, 4], "rounded down"
    assert least_certain(spread, 1.0).all()
    assert least_certain(spread, 1e-9).sum(1).tolist() == [1, 1], "one at least"
    assert least_certain(spread[:, :1], 0.5).all()


def test_patches_that_change_between_views_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that see only themselves, views that each change three patches of every image."""
    model = small(size=8, width=WIDTH)  # 2 x 2 patches
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight.zero_()
    changing = {0: [0, 3], 1: [1, 2], 2: [2, 3]}
    drawn = iter(range(100))

    def flicker(x: Tensor, generator: torch.Generator, *, per_sample: bool = True) -> Tensor:
        assert not per_sample
        out, light = x.clone(), next(drawn)
        for n, patches in changing.items():
            for t in patches:
                i, j = t // 2 * PATCH, t % 2 * PATCH
                out[n, light % 3, i : i + PATCH, j : j + PATCH] += 0.5
        return out

    seen: list[Tensor] = []

    def spy(model: nn.Module, x: Tensor, *masking: Tensor) -> tuple[Tensor, Tensor]:
        seen.extend(masking[:1])
        return forward_with_patches(model, x, *masking)

    monkeypatch.setattr(continual_mae, "cotta_view", flicker)
    monkeypatch.setattr(continual_mae, "forward_with_patches", spy)
    adapter_of(model)(pictures(2, size=3, side=8)[0])
    (hidden,) = seen
    assert {n: row.nonzero().flatten().tolist() for n, row in enumerate(hidden)} == changing


def test_everything_hidden_or_a_single_patch() -> None:
    """Behind the mask all images are the same; one patch is hidden though half of it is none."""
    x, _ = pictures(2)
    model = small()
    token = torch.zeros(WIDTH, dtype=torch.float64)
    everything = torch.ones(len(x), PATCHES, dtype=torch.bool)
    logits, _ = forward_with_patches(model, x, everything, token)
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))
    for adapter, batch in (
        (adapter_of(mask_ratio=1.0), x),
        (adapter_of(small(size=4)), pictures(2, side=4)[0]),
    ):
        source = parameters_of(adapter.model)
        assert adapter(batch).isfinite().all()
        assert not adapter.last.events
        assert not torch.equal(adapter.model.head.weight, source["head.weight"])


# The step


def test_twelve_forwards_and_one_backward() -> None:
    adapter = ContinualMae(small())
    counter = PassCounter(adapter.model)
    x, _ = pictures(2)
    with counter.counting():
        adapter(x)
    assert (counter.entered, counter.returned) == (12 * len(x), len(x))


def test_the_answer_is_the_whole_images_before_the_update() -> None:
    adapter = adapter_of()
    for x in pictures(3):
        before = adapter.predict(x)
        assert torch.equal(before, adapter.model(x))
        assert torch.equal(adapter(x), before)
        assert not torch.equal(adapter.predict(x), before)


def test_the_restore_spares_what_the_source_did_not_have() -> None:
    adapter = adapter_of(restore=1 - 1e-15)
    source, decoder = parameters_of(adapter.model), parameters_of(adapter.decoder)
    adapter(pictures(2)[0])
    for name, p in adapter.model.named_parameters():
        assert torch.equal(p, source[name])
    for name, p in adapter.decoder.named_parameters():
        assert not torch.equal(p, decoder[name])


def test_without_weight_the_histograms_are_not_learnt() -> None:
    adapter = adapter_of(hog_weight=0.0)
    decoder = parameters_of(adapter.decoder)
    adapter(pictures(2)[0])
    assert adapter.last.signals["hog"] > 0
    assert torch.equal(adapter.decoder.hog.weight, decoder["hog.weight"])
    assert not torch.equal(adapter.decoder.token, decoder["token"])


def test_the_histograms_are_learnt() -> None:
    adapter = adapter_of(restore=0.0)
    x = pictures(2)[0]
    found = []
    for _ in range(20):
        adapter(x)
        found.append(adapter.last.signals["hog"])
    assert found[-1] < 0.9 * found[0]


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    class Brittle(VisionTransformer):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            return logits + (0 * logits).abs().sqrt()

    model = small()
    model.__class__ = Brittle
    adapter = adapter_of(model, restore=0.5)
    with torch.no_grad():  # as if it had moved before: a restore would be seen
        for p in adapter.weights:
            p.add_(0.1)
    before = [tree_hash(adapter.state_dict()[k]) for k in adapter.stateful]
    assert adapter(pictures(2)[0]).isfinite().all()
    assert adapter.last.events[0]["event"] == "step dropped"
    assert [tree_hash(adapter.state_dict()[k]) for k in adapter.stateful] == before


def test_one_image_is_learnt_from() -> None:
    adapter = adapter_of()
    source = parameters_of(adapter.model)
    assert adapter(pictures(2)[0][:1]).shape == (1, CLASSES)
    assert not torch.equal(adapter.model.head.weight, source["head.weight"])


def test_nothing_is_drawn_from_the_generator_of_everybody() -> None:
    before = torch.get_rng_state()
    model = small()
    torch.set_rng_state(before)
    adapter_of(model)(pictures(2)[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_decides_the_decoder() -> None:
    one, same, other = (adapter_of(seed=seed).decoder.hog.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.std().item() == pytest.approx(0.02, rel=0.1)


def test_learns_in_half_precision() -> None:
    under, whole = adapter_of(make_tiny("vit")), adapter_of(make_tiny("vit").bfloat16())
    for x in noise_batches(3):
        with torch.autocast("cpu", torch.bfloat16):
            assert under(x).isfinite().all()
        assert whole(x.bfloat16()).isfinite().all()
    for adapter in (under, whole):
        assert not adapter.last.events
        assert adapter.decoder.token.dtype == torch.float32
        assert adapter.decoder.token.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_does_the_same() -> None:
    here, there = adapter_of(), adapter_of(small().cuda())
    for x in pictures(3):
        torch.testing.assert_close(there(x.cuda()).cpu(), here(x))


# Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mask_ratio": 0.0}, r"mask_ratio=0\.0"),
        ({"mask_ratio": 1.1}, r"mask_ratio=1\.1"),
        ({"mask_ratio": math.nan}, "mask_ratio=nan"),
        ({"augmentations": 1}, "augmentations=1"),
        ({"restore": 1.0}, r"restore=1\.0"),
        ({"restore": -0.1}, r"restore=-0\.1"),
        ({"hog_weight": -1.0}, r"hog_weight=-1\.0"),
        ({"hog_weight": math.nan}, "hog_weight=nan"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        adapter_of(**settings)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 channels"):
        ContinualMae(small(), input=bombus.Input(channels=1))


def test_published_settings() -> None:
    for benchmark, lr in (("cifar10-c", 1e-5), ("cifar100-c", 1e-5), ("imagenet-c", 1e-6)):
        c = ContinualMae.Config.for_benchmark(benchmark, "vit")
        assert (c.optimizer, c.lr, c.restore) == ("adam", lr, 0.01)
        assert (c.augmentations, c.mask_ratio, c.hog_weight) == (10, 0.5, 0.5)


def test_place_in_tables() -> None:
    assert place("obao") < place("continual-mae") == place("continual_mae") < place("roid")
    assert place("bee-paper") == place("bee-rehearsal") == place("bee")
    assert place("unheard-of") > place("bee")
