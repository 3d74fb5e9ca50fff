"""A user's own network adapted in three lines, saved, loaded elsewhere; a user's own method."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import bombus
from bombus.errors import ConfigError
from own_resnet import OwnResNet
from tiny import noise_batches, tree_hash

ELSEWHERE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
import bombus
from own_resnet import OwnResNet
from tiny import noise_batches, tree_hash
adapter = bombus.load(sys.argv[2], OwnResNet.trained())
print(json.dumps([tree_hash(adapter(x)) for x in noise_batches(8)[4:]]))
"""


def test_three_lines_save_and_go_on_in_a_new_process(tmp_path: Path) -> None:
    batches = noise_batches(8)
    for method in ("source", "bn", "tent"):
        adapter = bombus.adapt(OwnResNet.trained(), method)
        for x in batches[:4]:
            adapter(x)
        adapter.save(tmp_path / method)
        expected = [tree_hash(adapter(x)) for x in batches[4:]]
        here = Path(__file__).parent
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(here), str(tmp_path / method)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == expected


def test_an_adapter_says_what_it_is() -> None:
    model = OwnResNet.trained()
    total = sum(p.numel() for p in model.parameters())
    affine = sum(
        p.numel()
        for module in model.modules()
        if isinstance(module, torch.nn.BatchNorm2d)
        for p in module.parameters()
    )
    adapter = bombus.adapt(model, "tent")
    assert repr(adapter) == f"<tent: {affine:,} of {total:,} parameters of OwnResNet adapt>"


def test_settings_go_by_name(tmp_path: Path) -> None:
    model = OwnResNet.trained()
    adapter = bombus.adapt(model, "tent", lr=1e-4)
    assert adapter.config.lr == 1e-4
    over = bombus.adapt(model, "tent", config=adapter.config, optimizer="sgd")
    assert (over.config.lr, over.config.optimizer) == (1e-4, "sgd")
    with pytest.raises(bombus.BombusError, match="no tent setting named 'lrr'; did you mean 'lr'"):
        bombus.adapt(model, "tent", lrr=1e-4)
    with pytest.raises(bombus.BombusError, match="lr=-1"):
        bombus.adapt(model, "tent", lr=-1)
    other = bombus.adapt(model, "source").config
    with pytest.raises(bombus.BombusError, match=r"expected TentConfig of bombus\.methods\.tent"):
        bombus.adapt(model, "tent", config=other, lr=1e-4)
    named = bombus.adapt(model, "bee", blocks=["layer1", "layer2"], views="one")
    batches = noise_batches(3)
    named(batches[0])
    named.save(tmp_path)
    loaded = bombus.load(tmp_path, model)
    assert all(torch.equal(named(x), loaded(x)) for x in batches[1:])


def test_tent_changes_only_its_own_copy() -> None:
    model = OwnResNet.trained()
    before = tree_hash(model.state_dict())
    adapter = bombus.adapt(model, "tent")
    with torch.no_grad():
        for x in noise_batches(5):
            adapter(x)
    assert tree_hash(model.state_dict()) == before
    assert tree_hash(adapter.model.state_dict()) != before


def test_a_declared_range_lets_normalised_images_in() -> None:
    x = 3 * torch.randn(8, 3, 16, 16)
    adapter = bombus.adapt(OwnResNet.trained(), "tent", input=bombus.Input(low=-20.0, high=20.0))
    assert adapter(x).isfinite().all()


THROWAWAY = """
from bombus.methods import register
from bombus.methods.base import Adapter


@register("throwaway")
class Throwaway(Adapter):
    def step(self, x):
        return self.answer(x)

    def forward(self, x):
        return -self.model(x)
"""

EVERYWHERE = """
import sys
import throwaway
from bombus.cli import main

out = sys.argv[1]
short = ["--samples", "20", "--batch-size", "10", "--domains", "fog"]
main(["list", "methods"])
main(["run", "throwaway", *short, "--out", out])
main(["compare", out])
"""


def test_a_method_in_two_files_is_picked_up_everywhere(tmp_path: Path) -> None:
    """The method's file is written here; importing it stands for its line in the index."""
    (tmp_path / "throwaway.py").write_text(THROWAWAY)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EVERYWHERE, str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    listed, table = done.stdout.split("mean error")
    assert "throwaway" in listed
    assert "throwaway" in table
    contract = Path(__file__).parent / "contract"
    suite = [sys.executable, "-m", "pytest", str(contract), "-p", "throwaway", "-p", "no:xdist"]
    done = subprocess.run(
        [*suite, "-k", "throwaway and not process and not memory"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 30


class Broken(bombus.Adapter):
    """What an author may return by mistake."""

    wrong: ClassVar[Any] = None

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return self.wrong(self.model(x))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(x)
        return logits


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda y: y[:-1], r"answered 8 images with \(7, \d+\)"),
        (lambda y: y.argmax(1), r"answered 8 images with \(8,\)"),
        (lambda y: None, "answered 8 images with NoneType"),
    ],
)
def test_a_method_that_returns_no_logits_is_told_so(wrong: Any, words: str) -> None:
    Broken.wrong = staticmethod(wrong)
    Broken.name = "broken"
    with pytest.raises(ConfigError, match=rf"Broken\.step {words}, expected their logits"):
        Broken(OwnResNet.trained())(noise_batches(1)[0])


def test_settings_that_nobody_would_see_are_refused() -> None:
    class Config(bombus.BaseConfig):
        lr: float = 1e-3

    class Careless(Broken):
        pass

    Careless.Config = Config
    with pytest.raises(ConfigError, match=r"settings of careless .* put @dataclass\(frozen=True"):
        bombus.register("careless")(Careless)
    assert "careless" not in bombus.known_methods()


def test_a_file_in_the_index_without_a_method_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bombus.methods.INDEX", ("source", "_norm"))
    with pytest.raises(ConfigError, match=r"methods/_norm\.py is in the index and registers no"):
        bombus.known_methods()


def test_arguments_in_the_wrong_places_are_told_apart() -> None:
    model: Any = OwnResNet.trained()
    with pytest.raises(ConfigError, match=r"Got a OwnResNet as the folder, expected bombus.load"):
        bombus.load(model, "state")  # type: ignore[arg-type]
    with pytest.raises(bombus.BombusError, match="There is no method named 'OwnResNet'; choose"):
        bombus.adapt("tent", model)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Got a OrderedDict as the model.*by load_state_dict"):
        bombus.adapt(model.state_dict(), "tent")
    with pytest.raises(bombus.BombusError, match="no method named 'BEE'; did you mean 'bee'"):
        bombus.adapt(model, "BEE")
