"""The images that the package ships: what they are of, and who gets which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bombus.cli import main
from bombus.data.benchmarks import EMBEDDED, find_benchmark
from bombus.data.embedded import EmbeddedImages, training_images
from bombus.data.images import to_tensors
from bombus.data.source import SourceBatches
from bombus.methods import find_method, known_methods
from bombus.models import find_source, open_model, runs_without_source
from bombus.settings import RunSettings


def test_training_images_carry_their_own_labels_and_are_no_test_images() -> None:
    images, labels = training_images()
    assert images.shape == (1000, 32, 32, 3)
    tests = {image.tobytes() for image in EmbeddedImages().clean}
    assert not any(image.tobytes() in tests for image in images)
    model, _ = open_model(
        RunSettings(method="source"), find_benchmark("demo"), 10, torch.device("cpu")
    )
    x, y = to_tensors(images, labels)
    with torch.no_grad():
        right = (model.eval()(x).argmax(1) == y).double().mean().item()
    assert right > 0.95  # it was trained on them; labels of other images would give .1


def test_source_batches_are_drawn_by_the_seed() -> None:
    images, labels = training_images()
    images, labels = images[:10], labels[:10]
    batches = SourceBatches((images, labels), 4, count=9, seed=3)
    assert [len(y) for _, y in batches] == [4, 4, 1]
    again = torch.cat([x for x, _ in SourceBatches((images, labels), 4, count=9, seed=3)])
    assert torch.equal(torch.cat([x for x, _ in batches]), again)
    other = torch.cat([x for x, _ in SourceBatches((images, labels), 4, count=9, seed=4)])
    assert not torch.equal(again, other)
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for x, y in batches:
        pixels = (x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
        assert [known[image.tobytes()] for image in pixels] == y.tolist()


@pytest.mark.parametrize("name", [n for n, m in known_methods().items() if m.needs != "none"])
@pytest.mark.parametrize("benchmark", ["demo", "demo-vit", "cifar10-c"])
def test_who_gets_what_without_being_given_a_source(name: str, benchmark: str) -> None:
    found = find_source(RunSettings(method=name, benchmark=benchmark), 100)
    method = find_method(name)
    if benchmark == "cifar10-c":
        assert found is None
        assert runs_without_source(method, find_benchmark(benchmark)) == method.source_optional
    elif name not in ("bee", "bee-paper"):
        assert len(found) == 10
    elif (name, benchmark) == ("bee", "demo"):
        assert found == find_benchmark("demo").warmup
    else:
        assert found is None
        asked = RunSettings(method=name, benchmark=benchmark, source=EMBEDDED)
        assert len(find_source(asked, 100)) == 10


def test_a_rival_that_needs_labels_runs_out_of_the_box(tmp_path: Path) -> None:
    few = ["--samples", "20", "--batch-size", "20", "--domains", "fog"]
    main(["run", "obao", *few, "--out", str(tmp_path)])
    result = json.loads((tmp_path / "run.json").read_text())
    assert result["source_access"] == "labels"
    assert result["cost"]["source_bytes"] == 1000 * 3 * 32 * 32
