"""Networks in odd forms: compiled in part, lazy, channels last, tokens before images, buffers made
anew; and what is saved of them, read again where something has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.backbones.input import CIFAR, HALF, Input
from bombus.backbones.wide_resnet import WideResNet
from bombus.errors import CheckpointError, ConfigError, DataError, InputError
from bombus.methods._warmup_file import save_warmup
from bombus.methods.bee import Bee, BeeRehearsal
from tiny import make_adapter, make_tiny, noise_batches, tree_hash


class Grid(nn.Module):
    """Remembers a grid for the size of image it saw last, outside its state dict."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
            self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
            self.head = nn.Linear(4, 5)
        self.register_buffer("grid", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.grid.shape != x.shape[2:]:
            self.grid = torch.linspace(0, 0.1, x[0, 0].numel()).view(x.shape[2:])
        logits: Tensor = self.head(self.layer2(self.layer1(x + self.grid)).mean((2, 3)))
        return logits


# --- refused -----------------------------------------------------------------------------------


def refused(model: nn.Module, words: str, method: str = "tent") -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        bombus.adapt(model, method)
    assert "\n" not in str(caught.value)


def test_lazy_layers_must_have_seen_an_image() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(5))
    refused(model, "Sequential has lazy layers that have not seen an image")
    (x,) = noise_batches(1)
    model(x)
    assert bombus.adapt(model, "tent")(x).isfinite().all()


def test_a_part_that_was_compiled_is_refused_and_the_whole_is_not() -> None:
    model = Grid()
    model.layer1 = torch.compile(model.layer1, backend="eager")  # type: ignore[assignment]
    refused(model, "layer1 was compiled by itself, and what is adapted cannot be; give the network")
    whole = nn.DataParallel(torch.compile(Grid(), backend="eager"))  # type: ignore[arg-type]
    (x,) = noise_batches(1)
    assert torch.equal(bombus.adapt(whole, "tent")(x), bombus.adapt(Grid(), "tent")(x))


def test_a_module_that_keeps_its_last_features_cannot_be_copied_and_says_so() -> None:
    class Keeps(Grid):
        kept: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.layer1(x)
            return super().forward(x)

    model, (x,) = Keeps(), noise_batches(1)
    model(x)
    refused(model, r"Keeps cannot be copied: it keeps tensors of an earlier forward.*no_grad\(\)")
    with torch.no_grad():
        model(x)
    assert bombus.adapt(model, "tent")(x).isfinite().all()


def test_what_torch_says_in_whatever_error_is_one_sentence() -> None:
    class Asks(Grid):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x * mask)

    (x,) = noise_batches(1)
    adapter = bombus.adapt(Asks(), "tent")
    with pytest.raises(InputError, match=r"Asks does not take images .* missing 1 required") as e:
        adapter(x)
    assert "\n" not in str(e.value)


class FixedSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer2(self.layer1(x)).flatten(1))
        return logits


def test_predict_and_source_are_tried_out_too() -> None:
    (small,), (large,) = noise_batches(1), noise_batches(1, side=24)
    words = r"FixedSize does not take images of shape \(3, 24, 24\)"
    with pytest.raises(InputError, match=f"^{words}"):
        bombus.adapt(FixedSize(), "tent").predict(large)
    with pytest.raises(InputError, match=f"^In batch 2 of the source: {words}"):
        bombus.adapt(FixedSize(), "bee", source=[small, large])


def test_one_number_an_image_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    model, (x,) = Grid(), noise_batches(1)
    model.head = nn.Linear(4, 1)
    adapter = bombus.adapt(model, "tent")
    adapter(x)
    adapter(x)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "bombus"]
    assert told.startswith("tent: the network answers each image with one number")
    assert "torch.cat([-z, z], 1) / 2" in told


# --- blocks that are laid out otherwise --------------------------------------------------------


class Tokens(nn.Module):
    """Two transformer layers over patches, the images first or, as torch's default is, second."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=batch_first)
            for _ in range(2)
        )
        self.head = nn.Linear(8, 5)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).permute(*((0, 2, 1) if self.batch_first else (2, 0, 1)))
        for layer in self.layers:
            tokens = layer(tokens)
        logits: Tensor = self.head(tokens.mean(1 if self.batch_first else 0))
        return logits


def test_tokens_before_images_are_refused_by_what_looks_at_blocks() -> None:
    (x,) = noise_batches(1)
    blocks: dict[str, Any] = {"blocks": ("layers.0", "layers.1")}
    adapter = bombus.adapt(Tokens(batch_first=False), "bee", **blocks)
    before = tree_hash(adapter.state_dict())
    words = (
        r"'layers.1' gave \(16, 6, 8\) for 6 images, expected the images first; .*batch_first=True"
    )
    with pytest.raises(ConfigError, match=words):
        adapter(x[:3])
    assert tree_hash(adapter.state_dict()) == before
    assert bombus.adapt(Tokens(batch_first=True), "bee", **blocks)(x).isfinite().all()


class ChannelsAtTheEnd(nn.Module):
    """As Swin's blocks: (N, H, W, C) in and out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


def test_channels_at_the_end_are_described_as_channels() -> None:
    class SwinLike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 6, 4, 4)
            self.layers = nn.ModuleList(ChannelsAtTheEnd(6) for _ in range(2))
            self.head = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).permute(0, 2, 3, 1)
            for layer in self.layers:
                x = layer(x)
            logits: Tensor = self.head(x.mean((1, 2)))
            return logits

    model, (x,) = SwinLike(), noise_batches(1)
    bee = bombus.adapt(model, "bee", blocks=("layers.0", "layers.1"), levels=(1,))
    with torch.no_grad():
        seen = bee.passes(x).descriptors[1]
        out = model.layers[0](model.stem(x).permute(0, 2, 3, 1)).mean((1, 2))
    torch.testing.assert_close(seen, out / out.norm(dim=1, keepdim=True))


def test_channels_that_only_look_as_if_at_the_end_stay_where_they_are() -> None:
    """A dense block: its output is wider than any of its norms, one of which is as wide as high."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(16)
            self.conv = nn.Conv2d(16, 8, 3, padding=1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, self.conv(self.norm(x).relu())], 1)

    stem, dense = nn.Conv2d(3, 16, 3, padding=1), Dense()
    model = nn.Sequential(stem, dense, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))
    (x,) = noise_batches(1)
    bee = bombus.adapt(model, "bee", blocks=("0", "1"), levels=(2,), last_descriptor="block")
    seen = bee.passes(x).descriptors[2]
    assert seen.shape == (8, 24)


# --- saved and read again ----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tent", "cotta", "bee"])
def test_a_buffer_outside_the_state_dict_is_no_state(method: str, tmp_path: Path) -> None:
    adapter = make_adapter(method, Grid())
    for x in noise_batches(2, side=20):
        adapter(x)
    adapter.save(tmp_path)
    resumed = bombus.load(tmp_path, Grid())
    for x in noise_batches(2, side=24):
        assert torch.equal(resumed(x), adapter(x))
    adapter.reset()
    assert torch.equal(adapter(x), make_adapter(method, Grid())(x))


def wide(input: Input = CIFAR) -> WideResNet:
    model = WideResNet(10, 1, num_classes=5, input=input).eval()
    torch.manual_seed(7)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


@pytest.mark.parametrize("method", ["bee", "cotta", "rmt", "vdp", "sar"])
def test_channels_last_goes_on_with_the_same_bits(method: str, tmp_path: Path) -> None:
    """A file has no memory of how a tensor lay, and a convolution's last bits depend on it."""
    *batches, last = (x.to(memory_format=torch.channels_last) for x in noise_batches(4))
    adapter = make_adapter(method, wide().to(memory_format=torch.channels_last))
    for x in batches:
        adapter(x)
    adapter.save(tmp_path)
    resumed = bombus.load(tmp_path, wide().to(memory_format=torch.channels_last))
    assert strides(resumed) == strides(adapter)
    assert torch.equal(resumed(last), adapter(last))


def strides(adapter: Any) -> dict[str, tuple[int, ...]]:
    own = dict(adapter.model.named_parameters())
    of_teacher = adapter.teacher if isinstance(adapter, Bee) else {}
    held = {**own, **{f"teacher.{name}": p for name, p in of_teacher.items()}}
    return {name: p.stride() for name, p in held.items()}


def test_a_checkpoint_knows_how_its_model_took_images(tmp_path: Path) -> None:
    adapter = make_adapter("tent", wide())
    adapter.save(tmp_path)
    words = r"from a model whose input says otherwise: mean was None, is \(0\.5, 0\.5, 0\.5\), std"
    with pytest.raises(CheckpointError, match=words) as caught:
        bombus.load(tmp_path, wide(HALF))
    assert "\n" not in str(caught.value)
    bombus.load(tmp_path, wide())


class Scaled(Grid):
    """Something of its forward is no parameter and no buffer."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.scale * x)


def test_a_preparation_is_of_a_network_that_answers_so(tmp_path: Path) -> None:
    file, source = tmp_path / "warm.safetensors", noise_batches(3)
    save_warmup(Bee(Scaled(1), Bee.Config(codes=8), source=source), file)
    config = Bee.Config(codes=8)
    Bee(Scaled(1), config, source=file)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # rounding is no other network
        Bee(Scaled(1), config, source=file)
    with pytest.raises(CheckpointError, match="was made when this network answered otherwise"):
        Bee(Scaled(0.2), config, source=file)
    again = Bee(Scaled(0.2), config, source=source)  # the cache has none for it
    assert [event["event"] for event in again.last.events] == ["warm-up made again"]


def test_a_preparation_is_for_its_blocks_and_its_images(tmp_path: Path) -> None:
    file = tmp_path / "warm.safetensors"
    save_warmup(Bee(wide(), Bee.Config(codes=8), source=noise_batches(3)), file)
    with pytest.raises(CheckpointError, match=r"was made with input=.*make one with the same"):
        Bee(wide(HALF), Bee.Config(codes=8), source=file)
    turned = Bee.Config(codes=8, blocks=("block1", "block2", "block3.layer"))
    with pytest.raises(CheckpointError, match=r"was made with blocks=\['block1', 'block2', 'blo"):
        Bee(wide(), turned, source=file)


# --- memory and colours ------------------------------------------------------------------------


def test_a_queue_that_would_take_too_much_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bee = Bee(make_tiny("batchnorm"), Bee.Config(codes=8, sample_queue=40))
    bee.queue.megabytes = 20 * 3 * 16 * 16 / 1e6  # twenty images in bytes, five as floats
    bytes_ = [(255 * x).round() / 255 for x in noise_batches(2)]
    told = []
    for x in [*bytes_, *noise_batches(2)]:
        bee(x)
        reasons = (e["reason"] for e in bee.last.events if e["event"] == "sample queue cut short")
        told.append(next(reasons, "")[:41])
    few = "5 recent images are kept where 40 were as"
    assert told == ["20 recent images are kept where 40 were a", "", few, ""]
    assert len(bee.queue) == 5


def test_the_colours_of_rehearsal_are_asked_for_where_it_rehearses() -> None:
    grey = [x[:, :1] for x in noise_batches(3)]

    def model() -> nn.Module:
        made = Grid()
        made.layer1[0] = nn.Conv2d(1, 4, 3, 2, 1)
        return made

    none: dict[str, Any] = {"student_view": "none", "warmup_view": "none"}
    with pytest.raises(ConfigError, match='and rehearsal_view="none"'):
        BeeRehearsal(model(), BeeRehearsal.Config(**none), source=grey)
    small: dict[str, Any] = {"rehearsal_images": 8, "warmup_images": 16, "codes": 8}
    config = BeeRehearsal.Config(**none, rehearsal_view="none", **small)
    assert BeeRehearsal(model(), config, source=grey)(grey[0]).isfinite().all()
    assert Bee(model(), Bee.Config(**none, codes=8))(grey[0]).isfinite().all()


def test_nothing_of_a_source_that_is_refused_is_kept() -> None:
    (x,) = noise_batches(1)
    with pytest.raises(DataError, match="every batch is of one image"):
        bombus.adapt(
            Grid(), "dplot", source=[(x[:1], torch.tensor([0])), (x[1:2], torch.tensor([1]))]
        )
