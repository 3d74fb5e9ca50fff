"""A learning rate that belongs to other weights is noticed before the first batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bombus.methods import find_method
from bombus.methods._optim import make_optimizer, stride
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
