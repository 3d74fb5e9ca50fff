"""Class prototypes: mean penultimate features, class by class."""

from __future__ import annotations

import pytest
import torch

from bombus.backbones.prototypes import class_prototypes
from bombus.errors import ConfigError, DataError
from bombus.methods._norm import use_batch_statistics
from by_hand import Small, images, labelled, parameters_of, small_forward
from tiny import KINDS, make_tiny, noise_batches


def batch_statistics_model() -> Small:
    model = Small().eval()
    use_batch_statistics(model)
    return model


def test_means_and_sizes_one_image_at_a_time() -> None:
    model = batch_statistics_model()
    batches = labelled(3, 5)
    means, sizes = class_prototypes(model, batches)
    sums = [[0.0] * 4 for _ in range(3)]
    counts = [0] * 3
    for x, y in batches:
        _, features = small_forward(parameters_of(model), x)  # with the batch's own statistics
        for feature, label in zip(features.tolist(), y.tolist(), strict=True):
            counts[label] += 1
            sums[label] = [a + b for a, b in zip(sums[label], feature, strict=True)]
    expected = [[v / n for v in row] for row, n in zip(sums, counts, strict=True)]
    torch.testing.assert_close(means, torch.tensor(expected, dtype=torch.float64))
    assert sizes.tolist() == counts
    assert (means.dtype, means.device.type) == (torch.float64, "cpu")
    assert not means.requires_grad


def test_the_model_is_called_as_it_stands() -> None:
    own = class_prototypes(batch_statistics_model(), labelled(2, 6))[0]
    source = class_prototypes(Small().eval(), labelled(2, 6))[0]
    assert not torch.allclose(own, source)


def test_a_class_that_does_not_occur_has_mean_and_size_zero() -> None:
    x = images(4, seed=3)
    model = batch_statistics_model()
    means, sizes = class_prototypes(model, [(x, torch.tensor([2, 2, 0, 2]))])
    assert sizes.tolist() == [1, 0, 3]
    assert torch.equal(means[1], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(means[0], small_forward(parameters_of(model), x)[1][2])


def test_how_batches_are_cut_does_not_matter_without_batch_statistics() -> None:
    (x,), y = noise_batches(1, size=12), torch.arange(12) % 5
    model = make_tiny("groupnorm")
    whole = class_prototypes(model, [(x, y)])
    cut = class_prototypes(model, [(x[:5], y[:5]), (x[5:6], y[5:6]), (x[6:], y[6:])])
    torch.testing.assert_close(cut[0], whole[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(cut[1], whole[1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_network_and_every_batch_is_counted(kind: str) -> None:
    model = make_tiny(kind)
    calls = []
    source = ((x, torch.arange(8) % 5) for x in noise_batches(3))  # once over is enough
    means, sizes = class_prototypes(model, source, lambda: calls.append(1))
    assert len(calls) == 3
    assert means.shape[0] == 5
    assert means.isfinite().all()
    assert sizes.sum() == 24
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.tensor([0, 1, 2]), "came with 3 labels"),
        (torch.tensor([0, 1, 2, 3]), "from 0 to 3; expected one label an image, 0 to 2"),
        (torch.tensor([0, -1, 2, 1]), "from -1 to 2"),
    ],
    ids=["too few", "too high", "negative"],
)
def test_wrong_labels_are_refused(y: torch.Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        class_prototypes(batch_statistics_model(), [(images(4, seed=0), y)])


def test_no_batches_and_no_linear_layer() -> None:
    with pytest.raises(DataError, match="no source batches"):
        class_prototypes(batch_statistics_model(), [])

    class Pooled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3))

    with pytest.raises(ConfigError, match="no penultimate feature"):
        class_prototypes(Pooled(), [(images(4, seed=0), torch.zeros(4, dtype=torch.long))])
