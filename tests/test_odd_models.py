"""Networks that are not as expected, and batches that a network does not take: harm to nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.errors import ConfigError, InputError
from tiny import kinds_of, make_adapter, make_tiny, noise_batches, tree_hash

METHODS = sorted(bombus.known_methods())
FOR_ANY_NETWORK = [m for m in METHODS if not bombus.known_methods()[m].transformers_only]
TRAIN_NO_MODEL = ("source", "bn", "vdp")

every_method = pytest.mark.parametrize("method", METHODS)


class FixedSize(nn.Module):
    """Its classifier takes images of 16 x 16 pixels alone, and says so in torch's words."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
            self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
            self.head = nn.Linear(4 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer2(self.layer1(x)).flatten(1))
        return logits


@pytest.mark.parametrize("seen", [0, 1])
@pytest.mark.parametrize("method", FOR_ANY_NETWORK)
def test_a_batch_that_the_network_refuses_leaves_no_trace(method: str, seen: int) -> None:
    spared, hit = (make_adapter(method, FixedSize()) for _ in range(2))
    batches = noise_batches(seen + 2)
    for x in batches[:seen]:
        assert torch.equal(spared(x), hit(x))
    before, noise = tree_hash(hit.state_dict()), torch.random.get_rng_state()
    for _ in range(2):  # what failed once is not taken for known
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            hit(noise_batches(1, side=24)[0])
    assert tree_hash(hit.state_dict()) == before
    assert torch.equal(torch.random.get_rng_state(), noise)
    for x in batches[seen:]:
        assert torch.equal(spared(x), hit(x))
        assert spared.last.events == hit.last.events


def answering(method: str, change: Callable[[Tensor], Any]) -> nn.Module:
    model = make_tiny(kinds_of(method)[0])
    model.register_forward_hook(lambda _module, _inputs, logits: change(logits))
    return model


@every_method
@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda y: {"out": y, "aux": y}, "a dict of 'out', 'aux'"),
        (lambda y: (y, y), "a tuple of 2"),
        (lambda y: y[:, :, None, None], r"a tensor of shape \(\d, 5, 1, 1\) and type float32"),
        (lambda y: y.argmax(1), r"a tensor of shape \(\d,\) and type int64"),
        (lambda y: y[:1], r"a tensor of shape \(1, 5\) and type float32"),
        (lambda _: "a cat", "a str"),
    ],
)
def test_what_is_no_tensor_of_logits_is_refused(method: str, change: Any, came: str) -> None:
    x = noise_batches(1)[0]
    with pytest.raises(ConfigError, match=came) as caught:
        make_adapter(method, answering(method, change))(x)
    assert "(N, classes); wrap the network" in str(caught.value)
    assert "\n" not in str(caught.value)
    if bombus.known_methods()[method].needs == "none":
        with pytest.raises(ConfigError, match=came):
            make_adapter(method, answering(method, change)).predict(x)


@every_method
def test_an_output_that_names_its_logits_will_do(method: str) -> None:
    plain = make_adapter(method, make_tiny(kinds_of(method)[0]))
    named = make_adapter(method, answering(method, lambda y: SimpleNamespace(logits=y)))
    for x in noise_batches(2):
        assert torch.equal(plain(x), named(x))


def on(method: str, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    chosen = bombus.known_methods()[method]
    labels = torch.arange(8) % 5
    images = [x.to(dtype) for x in noise_batches(2)]
    source = [(x, labels) if chosen.needs == "labels" else x for x in images]
    settings = {"augmentations": 2} if hasattr(chosen.Config, "augmentations") else {}
    model = make_tiny(kinds_of(method)[0]).to(dtype)
    source = None if chosen.needs == "none" else source
    return model, {"config": chosen.Config(**settings), "source": source}


@every_method
def test_float16_is_trained_by_nobody(method: str) -> None:
    model, given = on(method, torch.float16)
    if method not in TRAIN_NO_MODEL:
        with pytest.raises(ConfigError, match=r"float16.*model\.float\(\)") as caught:
            bombus.adapt(model, method, **given)
        assert "\n" not in str(caught.value)
        return
    adapter = bombus.adapt(model, method, **given)
    for x in noise_batches(4):
        assert adapter(x.half()).isfinite().all()


@every_method
def test_bfloat16_stays_finite(method: str) -> None:
    model, given = on(method, torch.bfloat16)
    adapter = bombus.adapt(model, method, **given)
    for x in noise_batches(5):
        assert adapter(x.bfloat16()).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_no_answer_has_the_type_of_an_answer(dtype: torch.dtype) -> None:
    adapter = bombus.adapt(make_tiny("batchnorm").to(dtype), "bn")
    x = noise_batches(1)[0].to(dtype)
    none = torch.full_like(x, float("nan"))
    for batch in (x, none, x[:0]):
        assert adapter(batch).dtype == dtype
        assert adapter.predict(batch).dtype == dtype


@pytest.mark.parametrize("method", ["cotta", "bee"])
def test_autocast_keeps_no_weights_of_the_last_step(method: str) -> None:
    """One context around a whole stream, as users write it: its cache would go stale."""
    one, each = (make_adapter(method, make_tiny("batchnorm")) for _ in range(2))
    batches = noise_batches(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        together = [one(x) for x in batches] + [one.predict(batches[0])]
        assert torch.is_autocast_cache_enabled()
    apart = []
    for call, x in zip([each] * 4 + [each.predict], [*batches, batches[0]], strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            apart.append(call(x))
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


@pytest.mark.parametrize("method", ["source", "tent", "bee", "obao"])
def test_a_compiled_model_is_adapted_as_the_network_it_is(method: str, tmp_path: Path) -> None:
    model = make_tiny("batchnorm")
    compiled = torch.compile(model, backend="eager")
    plain, other = make_adapter(method, model), make_adapter(method, compiled)
    *batches, last = noise_batches(4)
    for x in batches:
        assert torch.equal(plain(x), other(x))
    other.save(tmp_path)
    expected = plain(last)
    for resumed in (bombus.load(tmp_path, compiled), bombus.load(tmp_path, model)):
        assert torch.equal(resumed(last), expected)


class Weightless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@every_method
def test_a_network_without_parameters_is_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="Weightless has no parameters") as caught:
        make_adapter(method, Weightless())
    assert "\n" not in str(caught.value)


def test_nothing_to_train_beside_the_classifier() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))
    with pytest.raises(ConfigError, match="no parameters for this method to train") as caught:
        make_adapter("obao", model)
    assert "\n" not in str(caught.value)


def test_images_without_channels() -> None:
    adapter = make_adapter("source", nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5)))
    for count in (0, 2):
        with pytest.raises(InputError, match="no channels"):
            adapter(torch.rand(count, 0, 16, 16))
