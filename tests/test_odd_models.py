"""Networks that are not as expected, and batches that a network does not take: harm to nobody."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from threading import Lock, Thread
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.errors import CheckpointError, ConfigError, InputError, UnknownNameError
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
        words = r"FixedSize does not take images of shape \(3, 24, 24\) \(.* multiplied"
        with pytest.raises(InputError, match=words):
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
        (lambda y: y[:, :, None, None], r"a tensor of shape \(\d+, 5, 1, 1\) and type float32"),
        (lambda y: y.argmax(1), r"a tensor of shape \(\d+,\) and type int64"),
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


# --- networks that would be adapted wrongly, and are refused -----------------------------------


class InPlace(FixedSize):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5).div_(0.25))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (InPlace, "InPlace changes its input in place"),
    ],
)
@pytest.mark.parametrize("method", ["tent", "sar", "rdumb", "bee-paper"])
def test_a_network_that_cannot_be_adapted_says_so(
    method: str, network: type[nn.Module], words: str
) -> None:
    adapter = bombus.adapt(network(), method)
    (x,) = noise_batches(1)
    before, state = x.clone(), tree_hash(adapter.state_dict())
    with pytest.raises(ConfigError, match=words):
        adapter(x)
    assert torch.equal(x, before)
    assert tree_hash(adapter.state_dict()) == state


def test_a_forward_that_is_bound_to_the_original_is_refused() -> None:
    model = FixedSize().train()
    original = model.forward
    model.forward = lambda x: original(x)  # type: ignore[method-assign]
    before = tree_hash(model.state_dict())
    with pytest.raises(ConfigError, match=r"FixedSize\.forward was replaced by a function"):
        bombus.adapt(model, "tent")
    assert tree_hash(model.state_dict()) == before
    model.forward = MethodType(FixedSize.forward, model)  # type: ignore[method-assign]
    bombus.adapt(model, "tent")(noise_batches(1)[0])
    assert tree_hash(model.state_dict()) == before


def test_a_network_that_holds_a_lock_or_a_file_cannot_be_copied_and_says_so(
    tmp_path: Path,
) -> None:
    with (tmp_path / "log").open("w") as file:
        for held in (Lock(), file, (i for i in range(3))):
            model: Any = FixedSize()
            model.held = held
            with pytest.raises(ConfigError, match=r"FixedSize cannot be copied \(cannot p") as e:
                bombus.adapt(model, "tent")
            assert "\n" not in str(e.value)


def test_norms_that_share_their_parameters_are_stepped_once() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip
    first, second = (m for m in model if isinstance(m, nn.GroupNorm))
    second.weight, second.bias = first.weight, first.bias
    adapter = bombus.adapt(model, "tent", lr=1e-3)
    adapter(noise_batches(1)[0])
    moved = (adapter.model[1].weight - first.weight).abs().max().item()
    assert moved == pytest.approx(1e-3, rel=0.01)  # Adam's first step is as long as the rate


@pytest.mark.parametrize("method", ["bee", "bee-paper"])
def test_a_parameter_that_takes_no_part_stays_as_it_is(method: str) -> None:
    model = FixedSize()
    model.layer1.spare = nn.Parameter(torch.ones(3, 3))  # type: ignore[assignment]
    adapter = bombus.adapt(model, method, source=noise_batches(3))
    for x in noise_batches(3):
        assert adapter(x).isfinite().all()
    assert torch.equal(adapter.model.layer1.spare, torch.ones(3, 3))  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("method", ["tent", "bee"])
def test_parallel_networks_are_adapted_as_the_network_they_hold(
    method: str, tmp_path: Path
) -> None:
    batches = noise_batches(3)
    plain, wrapped = (
        bombus.adapt(model, method) for model in (FixedSize(), nn.DataParallel(FixedSize()))
    )
    assert torch.equal(plain(batches[0]), wrapped(batches[0]))
    wrapped.save(tmp_path)
    loaded = bombus.load(tmp_path, FixedSize())
    assert torch.equal(plain(batches[1]), loaded(batches[1]))


# --- images in another range ------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bee", "roid", "adacontrast"])
def test_views_keep_the_range_that_the_network_takes(method: str) -> None:
    """The same network in other units: what it answers and learns is the same, up to rounding."""

    class Shifted(FixedSize):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward((x + 3) / 6)

    plain = bombus.adapt(FixedSize(), method)
    shifted = bombus.adapt(Shifted(), method, input=bombus.Input(low=-3, high=3))
    for x in noise_batches(4):
        torch.testing.assert_close(shifted(6 * x - 3), plain(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["bee", "roid", "adacontrast"])
def test_colour_views_of_grey_images_are_refused_before_the_first(method: str) -> None:
    model = FixedSize()
    model.layer1[0] = nn.Conv2d(1, 4, 3, 2, 1)
    with pytest.raises(ConfigError, match=r"takes images of 3 channels, not of 1; "):
        bombus.adapt(model, method)
    grey = torch.stack(noise_batches(2))[:, :, :1]
    for x in grey if method == "bee" else ():
        none: Any = {"student_view": "none", "warmup_view": "none"}
        assert bombus.adapt(model, method, **none)(x).isfinite().all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (bombus.Input(mean=(0.5,) * 3, std=(0.2,) * 3), "only networks of bombus apply"),
        ((0, 1), r"Got input=\(0, 1\), expected bombus.Input"),
    ],
)
def test_an_input_that_nobody_would_apply_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        bombus.adapt(FixedSize(), "source", input=given)


@pytest.mark.parametrize("given", [{"mean": (0.5,) * 3}, {"mean": (0.5,) * 2, "std": (0.2,) * 2}])
def test_half_a_normalisation_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="expected both or neither, a number for each of 3"):
        bombus.Input(**given)


def test_a_convolution_that_is_not_the_first_called_says_nothing_of_images() -> None:
    class Aux(FixedSize):
        def __init__(self) -> None:
            super().__init__()
            self._modules = {"aux": nn.Conv2d(16, 4, 1), **self._modules}

    assert bombus.adapt(Aux(), "tent")(noise_batches(1)[0]).shape == (8, 5)


# --- arguments ---------------------------------------------------------------------------------


def test_arguments_of_the_wrong_kind_get_a_sentence(tmp_path: Path) -> None:
    for model in ("resnet", None, FixedSize, lambda x: x):
        with pytest.raises(ConfigError, match="expected a trained classifier"):
            bombus.adapt(model, "tent")  # type: ignore[arg-type]
    for method in (None, 5, ["tent"]):
        with pytest.raises(UnknownNameError, match="There is no method named"):
            bombus.adapt(FixedSize(), method)  # type: ignore[arg-type]
    adapter = bombus.adapt(FixedSize(), "tent")
    for x in (torch.rand(2, 3, 16, 16).to_sparse(), torch.rand(2, 3, 16, 16).to_mkldnn()):
        with pytest.raises(InputError, match="expected a dense one"):
            adapter(x)
    with pytest.raises(ConfigError, match="a note named method"):
        adapter.save(tmp_path, method="mine")


def test_a_checkpoint_that_cannot_be_written_or_read_says_why(tmp_path: Path) -> None:
    adapter = bombus.adapt(FixedSize(), "tent")
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match="cannot be written: "):
            adapter.save(place)
        with pytest.raises(CheckpointError, match="cannot be read: "):
            bombus.load(place, FixedSize())
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "folder").mkdir()
    for manifest in ("[]", "[" * 100_000, "{}", "3"):
        (tmp_path / "folder" / "manifest.json").write_text(manifest)
        with pytest.raises(CheckpointError, match="cut off or not JSON"):
            bombus.load(tmp_path / "folder", FixedSize())


# --- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bn", "tent"])
def test_asking_in_one_thread_does_not_disturb_another(method: str) -> None:
    batches = noise_batches(30)
    expected = [*map(bombus.adapt(FixedSize(), method), batches)]
    adapter, asking = bombus.adapt(FixedSize(), method), True

    def ask() -> None:
        while asking:
            adapter.predict(batches[0][:1])

    thread = Thread(target=ask)
    thread.start()
    try:
        answers = [adapter(x) for x in batches]
    finally:
        asking = False
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(answers, expected, strict=True))


def test_an_adapter_can_be_copied_and_pickled() -> None:
    adapter = bombus.adapt(FixedSize(), "tent")
    batches = noise_batches(2)
    adapter(batches[0])
    copies = [deepcopy(adapter), pickle.loads(pickle.dumps(adapter))]  # noqa: S301
    expected = adapter(batches[1])
    assert all(torch.equal(copy(batches[1]), expected) for copy in copies)
