"""A learning rate belongs to the weights it was made for.

One that is too long for these is noticed before the first batch; a relative one fits all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bombus.errors import ConfigError
from bombus.methods import find_method
from bombus.methods._optim import descend, fitting_rate, make_optimizer, stride
from tiny import make_tiny


def test_by_hand() -> None:
    """Of three layers the median: lr * sqrt(inputs) / standard deviation of the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1), nn.Linear(4, 2)
    )
    expected = []
    for layer, inputs in ((model[0], 27), (model[2], 8), (model[3], 4)):
        weights = layer.weight.detach().double().numpy()
        expected.append(0.01 * np.sqrt(inputs) / weights.std(ddof=1))
    found = stride(model, make_optimizer(model.parameters(), "adam", 0.01))
    assert found == pytest.approx(np.median(expected), rel=1e-5)
    # What the paper's network and ours make of one rate: weights an eighth as large, eight times.
    with torch.no_grad():
        for layer in (model[0], model[2], model[3]):
            layer.weight /= 8
    smaller = stride(model, make_optimizer(model.parameters(), "adam", 0.01))
    assert smaller == pytest.approx(8 * found, rel=1e-5)


def test_only_adam_on_convolutions_and_linear_layers_has_one() -> None:
    model = make_tiny("batchnorm")
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    assert stride(model, make_optimizer(norms, "adam", 1.0)) == 0
    assert stride(model, make_optimizer(model.parameters(), "sgd", 1.0)) == 0
    assert stride(model, None) == 0
    blank = nn.Conv2d(3, 2, 3)
    nn.init.zeros_(blank.weight)
    assert stride(blank, make_optimizer(blank.parameters(), "adam", 1.0)) == 0


def test_it_is_said_once_with_a_remedy_that_helps(tmp_path: Path) -> None:
    model, x = make_tiny("batchnorm"), torch.rand(4, 3, 16, 16)
    cotta = find_method("cotta")
    told = cotta(model, cotta.Config(lr=1.0))
    told(x)
    (event,) = [e for e in told.last.events if e["event"] == "long steps"]
    assert event["stride"] > 5
    assert event["reason"].startswith("at lr=1 one step of Adam can move a layer's output")
    told(x)
    assert not told.last.events
    told.save(tmp_path)
    again = cotta.load(tmp_path, model)
    again(x)
    assert not again.last.events
    remedy = float(event["reason"].rpartition("lr=")[2])
    for quiet in (cotta(model, cotta.Config(lr=remedy)), cotta(model)):
        quiet(x)
        assert not quiet.last.events
    tent = find_method("tent")
    norms_alone = tent(model, tent.Config(lr=1.0))
    norms_alone(x)
    assert not norms_alone.last.events


def test_a_relative_step_is_a_part_of_each_tensor() -> None:
    """Adam's first step is as long as its rate: lr times the tensor's own root mean square."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
    x = torch.rand(8, 3, 6, 6)
    model(x)
    nn.init.zeros_(model[3].bias)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model.parameters(), "relative-adam", 0.01)
    assert descend(model(x).square().sum(), optimizer)
    for name, p in model.named_parameters():
        size = np.sqrt(np.mean(before[name].double().numpy() ** 2))
        moved = (p.detach() - before[name]).abs()
        # BatchNorm takes away what the bias before it adds: its gradient is rounding.
        if name != "0.bias":
            expected = torch.full_like(moved, 0.01 * max(size, 1e-3))
            torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-7, msg=name)


@pytest.mark.parametrize(("optimizer", "alike"), [("relative-adam", True), ("adam", False)])
def test_the_same_network_in_other_numbers_learns_the_same(optimizer: str, alike: bool) -> None:
    """Convolutions times 5 and norms times .3, answers unchanged: as lab/rescale.py does it."""
    torch.manual_seed(1)

    def network() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 3),
        ).double()

    first, second = network(), network()
    for norm in (first[1], first[4]):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.3)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        for place, factor in ((0, 5), (1, 0.3), (3, 5), (4, 0.3)):
            for p in second[place].parameters():
                p *= factor
        second[8].weight /= 0.3
    stream = [torch.rand(16, 3, 8, 8, dtype=torch.float64) for _ in range(6)]
    cotta = find_method("cotta")
    answers = []
    for model in (first, second):
        adapter = cotta(model, cotta.Config(optimizer=optimizer, lr=0.01, restore=0.0))
        answers.append(torch.cat([adapter(x) for x in stream]))
    apart = (answers[0] - answers[1]).abs().max().item()
    assert (apart < 1e-4) == alike


def test_a_relative_rate_goes_through_a_checkpoint(tmp_path: Path) -> None:
    model, stream = make_tiny("batchnorm"), [torch.rand(8, 3, 16, 16) for _ in range(4)]
    bee = find_method("bee")
    one = bee(
        model, bee.Config(optimizer="relative-adam", lr=0.01), source=[torch.rand(8, 3, 16, 16)]
    )
    for x in stream[:2]:
        one(x)
    one.save(tmp_path)
    two = bee.load(tmp_path, model)
    for x in stream[2:]:
        assert torch.equal(one(x), two(x))


def test_bee_finds_a_rate_that_fits_the_network(tmp_path: Path) -> None:
    """.0083 of the median weight tensor's root mean square, to one figure, in every number."""
    bee = find_method("bee")
    model = make_tiny("batchnorm")
    adapter = bee(model)
    sizes = [
        np.sqrt((p.detach().double().numpy() ** 2).mean())
        for p in adapter.adapted.values()
        if p.ndim > 1
    ]
    rate = adapter.config.lr
    assert rate == adapter.optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(0.0083 * np.median(sizes), rel=0.34)
    assert rate == float(f"{rate:.0e}")
    with torch.no_grad():
        for p in model.parameters():
            p /= 100
    assert bee(model).config.lr == pytest.approx(rate / 100, rel=0.34)
    # What was found is what is saved and gone on with, and what is given is taken.
    adapter.save(tmp_path / "state")
    assert bee.load(tmp_path / "state", make_tiny("batchnorm")).config.lr == rate
    assert bee(model, bee.Config(lr=0.5)).config.lr == 0.5
    assert bee(model, bee.Config(optimizer="relative-adam")).config.lr == 0.0083
    with pytest.raises(ConfigError, match="optimizer='sgd' without lr"):
        bee.Config(optimizer="sgd")


def test_the_rate_that_fits_is_the_one_measured() -> None:
    """On weights of the size of our WRN-28-10's it is 5e-5; of nothing but zeros it is small."""
    weights = [torch.full((4, 3, 3, 3), size) for size in (0.004, 0.0062, 0.009)]
    norms = [torch.ones(4)] * 9  # of a norm's parameters there are more, and they do not count
    assert fitting_rate([*weights, *norms], 0.0083) == 5e-5
    assert fitting_rate(norms, 0.0083) == 8e-3
    assert 0 < fitting_rate([torch.zeros(3, 3)], 0.0083) < 1e-4
