"""A user's own network adapted in three lines, saved, loaded elsewhere; a user's own method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

import bombus
from bombus import Adapter, register
from bombus.methods import _METHODS
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


def test_a_method_in_two_files_is_picked_up_everywhere(tmp_path: Path) -> None:
    """The method file is the class below; the line in the index is the decorator's work here."""

    @register("throwaway")
    class Throwaway(Adapter):
        def step(self, x: Tensor) -> Tensor:
            return self.answer(x)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.model(x)
            return -logits

    try:
        from bombus.cli import main
        from bombus.report.records import read_run

        assert "throwaway" in bombus.known_methods()
        out = tmp_path / "run"
        options = ["--samples", "20", "--batch-size", "10", "--domains", "fog", "--out", str(out)]
        main(["run", "throwaway", *options])
        assert read_run(out).method == "throwaway"
        main(["compare", str(out), "--out", str(tmp_path / "table.txt")])
        assert "throwaway" in (tmp_path / "table.txt").read_text()
        main(["list", "methods"])
        contract = Path(__file__).parent / "contract" / "test_contract.py"
        assert "sorted(bombus.known_methods())" in contract.read_text()
    finally:
        del _METHODS["throwaway"]
