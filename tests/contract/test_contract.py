"""The contract of every registered method on BatchNorm, GroupNorm and ViT (rows A1-A7, B1-B3)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.backbones.weights import state_sha256
from bombus.errors import BombusError, CheckpointError, ConfigError, InputError
from tiny import KINDS, kinds_of, make_adapter, make_tiny, noise_batches, speck_of, tree_hash

METHODS = sorted(bombus.known_methods())
SCRIPT = Path(__file__).with_name("other_process.py")

every_method = pytest.mark.parametrize("method", METHODS)
every_method_and_network = pytest.mark.parametrize(
    ("method", "kind"), [(method, kind) for method in METHODS for kind in kinds_of(method)]
)


def other_process(*arguments: object) -> Any:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@every_method
def test_declarations_are_complete(method: str) -> None:
    chosen = bombus.known_methods()[method]
    assert chosen.name == method
    assert chosen.needs in ("none", "statistics", "samples", "labels")
    assert chosen.predicts in ("before update", "after update")
    for benchmark in ("cifar10-c", "cifar100-c", "imagenet-c"):
        for family in ("cnn", "vit"):
            assert isinstance(chosen.Config.for_benchmark(benchmark, family), chosen.Config)


@every_method_and_network
def test_a1_predict_changes_nothing(method: str, kind: str) -> None:
    adapter = make_adapter(method, make_tiny(kind))
    batches = noise_batches(4)
    for x in batches[:3]:
        adapter(x)
    before, x = tree_hash(adapter.state_dict()), batches[3].clone()
    answers = [adapter.predict(x) for _ in range(10)]
    assert tree_hash(adapter.state_dict()) == before
    assert torch.equal(x, batches[3])
    assert all(torch.equal(a, answers[0]) for a in answers)
    assert not answers[0].requires_grad


@every_method
def test_a2_two_processes_give_the_same_bits(method: str) -> None:
    here = {}
    for kind in kinds_of(method):
        adapter = make_adapter(method, make_tiny(kind))
        here[kind] = tree_hash([adapter(x) for x in noise_batches(50)])
    assert other_process("play", method, 50) == here


@every_method
def test_a3_resumes_exactly_from_every_batch_in_a_new_process(method: str, tmp_path: Path) -> None:
    count = 21
    batches = noise_batches(count)
    expected = {}
    for kind in kinds_of(method):
        adapter = make_adapter(method, make_tiny(kind))
        logits = []
        for k, x in enumerate(batches):
            adapter.save(tmp_path / method / kind / str(k))
            logits.append(adapter(x))
        expected[kind] = {str(k): tree_hash(logits[k:]) for k in range(count)}
    assert other_process("resume", method, count, tmp_path) == expected


@every_method_and_network
def test_a4_reset_is_a_fresh_start(method: str, kind: str, tmp_path: Path) -> None:
    batches = noise_batches(50)
    adapter = make_adapter(method, make_tiny(kind))
    fresh = tree_hash(adapter.state_dict())
    first = [adapter(x) for x in batches]
    adapter.save(tmp_path)
    adapter.reset()
    assert tree_hash(adapter.state_dict()) == fresh
    again = [adapter(x) for x in batches]
    assert tree_hash(again) == tree_hash(first)
    loaded = bombus.load(tmp_path, make_tiny(kind))
    loaded.reset()  # the way back to the start is part of what is saved
    assert tree_hash(loaded.state_dict()) == fresh


@every_method
def test_a5_memory_stays_flat(method: str) -> None:
    adapter = make_adapter(method, make_tiny(speck_of(method)), lean=True)
    batches = noise_batches(10, size=4, side=8)
    for step in range(5000):
        adapter(batches[step % 10])
        if step == 500:
            before = resident_mb()
    assert resident_mb() - before < 5


def resident_mb() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("resident memory is read from /proc")
    line = next(li for li in status.read_text().splitlines() if li.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@every_method_and_network
def test_a6_two_adapters_share_nothing(method: str, kind: str) -> None:
    model = make_tiny(kind)
    before = state_sha256(model)
    alone = make_adapter(method, model)
    expected = [alone(x) for x in noise_batches(6)]
    one, two = make_adapter(method, model), make_adapter(method, model)
    for x, y in zip(noise_batches(6), expected, strict=True):
        assert torch.equal(one(x), y)
        two(1 - x)
    assert state_sha256(model) == before, "the user's model was changed"
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


@every_method_and_network
def test_frozen_parameters_never_change(method: str, kind: str) -> None:
    """State leaves frozen parameters out, so they must be those of the source for ever."""
    adapter = make_adapter(method, make_tiny(kind))
    frozen = {k: p.detach().clone() for k, p in adapter.model.named_parameters()}
    for x in noise_batches(5):
        adapter(x)
    for name, p in adapter.model.named_parameters():
        if not p.requires_grad:
            assert torch.equal(p, frozen[name]), name


@every_method_and_network
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_adapts_inside_evaluation_modes(method: str, kind: str, mode: Any) -> None:
    batches = noise_batches(3)
    outside, inside = (make_adapter(method, make_tiny(kind)) for _ in range(2))
    expected = [outside(x) for x in batches]
    with mode():
        logits = [inside(x + 0.0) for x in batches]  # a tensor made under the mode itself
        inside.load_state_dict(inside.state_dict())
        inside.reset()
    assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))
    assert torch.equal(inside(batches[0]), expected[0])


def test_a7_source_is_the_model_itself() -> None:
    for kind in KINDS:
        model = make_tiny(kind)
        adapter = make_adapter("source", model)
        for x in noise_batches(3):
            with torch.no_grad():
                assert torch.equal(adapter(x), model(x))


def test_a7_bn_uses_the_statistics_of_the_batch() -> None:
    """Against statistics computed layer by layer in float64 and written into the buffers."""
    model = make_tiny("batchnorm").double()
    x = noise_batches(1)[0].double()

    def take_statistics(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        norm.running_mean = inputs[0].mean((0, 2, 3))
        norm.running_var = inputs[0].var((0, 2, 3), unbiased=False)

    reference = make_tiny("batchnorm").double()
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(take_statistics)
    with torch.no_grad():
        expected = reference(x)
    torch.testing.assert_close(make_adapter("bn", model)(x), expected, rtol=0, atol=1e-6)


@every_method_and_network
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_b1_one_bad_pixel_harms_nobody(method: str, kind: str, poison: float) -> None:
    batches = noise_batches(3)
    clean, hit = (make_adapter(method, make_tiny(kind)) for _ in range(2))
    clean(batches[0]), hit(batches[0])
    without = torch.cat([batches[1][:5], batches[1][6:]])
    with_bad = batches[1].clone()
    with_bad[5, 1, 2, 3] = poison
    expected, logits = clean(without), hit(with_bad)
    assert torch.equal(torch.cat([logits[:5], logits[6:]]), expected)
    assert logits[5].isnan().all()
    assert list(hit.last.rejected) == [5]
    assert hit.last.events[-1]["event"] == "rejected"
    assert torch.equal(clean(batches[2]), hit(batches[2])), "the next batch noticed"
    assert tree_hash(clean.state_dict()) == tree_hash(hit.state_dict())


@every_method
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x: x * 255, "divide 8-bit values by 255"),
        (lambda x: (x * 255).byte(), "uint8"),
        (lambda x: (x * 255).byte().permute(0, 2, 3, 1), "permute"),
        (lambda x: x.permute(0, 2, 3, 1), "permute"),
        (lambda x: x[:, :1], "3 channels"),
        (lambda x: x[:, :2], "3 channels"),
        (lambda x: x[0], "x\\[None\\]"),
        (lambda x: x.double(), "float32"),
        (lambda x: x.long(), "int64"),
        (lambda x: x[:, :, :0, :0], "0 x 0"),
        (lambda x: x[:1, :, :1, :1].expand(1, 3, 10000, 10000), "10000 x 10000"),
        (lambda x: x.numpy(), "ndarray"),
    ],
)
def test_b2_wrong_batches_are_refused_in_one_sentence(method: str, spoil: Any, words: str) -> None:
    adapter = make_adapter(method, make_tiny(kinds_of(method)[0]))
    (x,) = noise_batches(1)
    adapter(x)
    before = tree_hash(adapter.state_dict())
    for call in (adapter, adapter.predict):
        with pytest.raises(InputError, match=words) as caught:
            call(spoil(x))
        assert "\n" not in str(caught.value)
    assert tree_hash(adapter.state_dict()) == before


@every_method_and_network
def test_b3_empty_single_and_short_batches(method: str, kind: str) -> None:
    adapter = make_adapter(method, make_tiny(kind))
    batches = noise_batches(4)
    before = tree_hash(adapter.state_dict())
    assert adapter(batches[0][:0]).shape == (0, 5)
    assert adapter.predict(batches[0][:0]).shape == (0, 5)
    assert tree_hash(adapter.state_dict()) == before, "an empty batch was learnt from"
    all_bad = torch.full_like(batches[0], float("nan"))
    assert adapter(all_bad).isnan().all()
    assert tree_hash(adapter.state_dict()) == before
    adapter(batches[0])
    for size in (1, 3):
        logits = adapter(batches[1][:size])
        assert logits.shape == (size, 5)
        assert logits.isfinite().all()
    assert adapter(batches[2]).isfinite().all()


@every_method
def test_a_checkpoint_of_something_else_is_refused(method: str, tmp_path: Path) -> None:
    kind = kinds_of(method)[0]
    make_adapter(method, make_tiny(kind)).save(tmp_path)
    other = next(m for m in METHODS if m != method)
    with pytest.raises(CheckpointError, match=f"of method '{method}'"):
        bombus.known_methods()[other].load(tmp_path, make_tiny(kind))
    with pytest.raises(CheckpointError, match="other weights"):
        bombus.load(tmp_path, make_tiny("groupnorm"))


@every_method
def test_wrong_config_and_missing_source(method: str) -> None:
    chosen = bombus.known_methods()[method]
    other = next(m for m in bombus.known_methods().values() if m.Config is not chosen.Config)
    kind = kinds_of(method)[0]
    if not issubclass(other.Config, chosen.Config):
        with pytest.raises(ConfigError, match=f"{method}"):
            chosen(make_tiny(kind), other.Config())
    if chosen.needs != "none" and not chosen.source_optional:
        with pytest.raises(BombusError, match="pass source=loader"):
            chosen(make_tiny(kind))


@pytest.mark.parametrize(
    ("method", "kind"), [(m, k) for m in METHODS for k in KINDS if k not in kinds_of(m)]
)
def test_a_network_that_does_not_fit_is_refused_in_one_sentence(method: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"^{method} works inside a vision transformer") as caught:
        make_adapter(method, make_tiny(kind))
    assert "\n" not in str(caught.value)
