"""What a method finds wrong reaches whoever calls it from Python: a warning in the log, once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.cli import main
from tiny import make_tiny


class Sides(nn.Module):
    """Left or right: where the image is brighter. A mirror swaps its classes."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
        self.block2 = nn.Conv2d(2, 2, 1)
        self.fc = nn.Linear(2, 2)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[50.0, -50.0], [-50.0, 50.0]]))
            self.fc.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        sides = x.mean((1, 2)).unflatten(1, (2, -1)).mean(2)
        answers: Tensor = self.fc(sides) + 0 * self.block2(self.block1(x)).mean()
        return answers


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "bombus"]


@pytest.mark.parametrize("with_source", [True, False])
def test_a_mirror_that_swaps_classes_is_told_of(
    with_source: bool, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.rand(64, 3, 16, 16)
    source = [x] if with_source else None
    small: dict[str, Any] = {
        "blocks": ("block1", "block2"),
        "warmup_images": 64,
        "warmup_rounds": 1,
    }
    adapter = bombus.adapt(Sides(), "bee", source=source, **small)
    adapter(x)
    adapter(x)
    (told,) = [m for m in messages(caplog) if "mirror" in m]
    assert told.startswith("bee: mirror images differ: the network answers 100% of mirrored images")
    assert "set views to one" in told
    caplog.clear()
    bombus.adapt(Sides(), "bee", source=source, views="one", **small)(x)
    assert not [m for m in messages(caplog) if "mirror" in m]


def test_images_set_aside_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    adapter = bombus.adapt(make_tiny("batchnorm"), "tent")
    x = torch.rand(4, 3, 16, 16)
    adapter(x)
    assert not messages(caplog)
    x[2, 0, 0, 0] = torch.nan
    adapter(x)
    adapter(x)
    (told,) = messages(caplog)
    assert told.startswith("tent: 1 of 4 images were set aside (")
    assert told.endswith("adapter.last.rejected says which, after every call (said once)")
    assert list(adapter.last.rejected) == [2]


def test_one_image_alone_is_told_of_where_batch_statistics_need_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.rand(1, 3, 16, 16)
    bombus.adapt(make_tiny("layernorm"), "tent")(x)
    assert not messages(caplog)
    adapter = bombus.adapt(make_tiny("batchnorm"), "tent")
    adapter(x)
    adapter(x)
    (told,) = messages(caplog)
    assert told.startswith("tent: one image alone has no batch statistics")


def test_a_step_that_is_too_long_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    bombus.adapt(make_tiny("batchnorm"), "cotta", lr=1.0)
    (told,) = messages(caplog)
    assert told.startswith("cotta: long steps: at lr=1 one step of Adam")


def test_the_command_line_prints_events_and_no_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "cotta", "--samples", "4", "--batch-size", "2", "--domains", "fog"]
    main([*run, "--set", "lr=1.0", "--out", str(tmp_path / "run")])
    said = capfd.readouterr().err
    assert "long steps" in said
    assert "said once" not in said
    assert not logging.getLogger("bombus").disabled
