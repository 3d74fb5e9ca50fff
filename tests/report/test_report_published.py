from __future__ import annotations

import statistics

import pytest

from bombus.report.layout import SHORT
from bombus.report.published import all_rows, published_rows

STANDARD = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
# Printed means that are not the mean of their columns: (method, backbone) -> (printed, computed).
MISPRINTS = {
    ("adacontrast", "resnet50"): (65.6, 65.52),
    ("obao", "resnet50"): (59.0, 59.07),
    ("vida", "vit-b16-224"): (43.1, 43.45),
}


def test_columns_are_in_the_published_order():
    assert tuple(SHORT) == STANDARD


def test_printed_means_are_those_of_their_columns_except_the_known_misprints():
    found = {}
    for row in all_rows():
        if row.domains is None:
            continue
        assert tuple(row.domains) == STANDARD
        computed = statistics.fmean(row.domains.values())
        if abs(computed - row.mean) > 0.05 + 1e-9:
            found[row.method, row.backbone] = (row.mean, round(computed, 2))
            assert f"printed as {row.mean}" in row.notes[0]
            assert f"average {computed:.2f}" in row.notes[0]
    assert found == MISPRINTS


@pytest.mark.parametrize(
    ("benchmark", "backbone", "paper", "others"),
    [
        ("cifar10-c", "wrn-28-10", 11, 11),
        ("cifar100-c", "resnext29-4x32", 11, 11),
        ("imagenet-c", "resnet50", 11, 11),
        ("cifar10-c", "vit-b16-384", 7, 0),
        ("cifar100-c", "vit-b16-384", 7, 0),
        ("imagenet-c", "vit-b16-224", 7, 0),
        ("imagenet-c", "vit-b16-384", 0, 0),
        ("demo", "wrn-16-1", 0, 0),
    ],
)
def test_every_row_of_the_tables_is_there(benchmark, backbone, paper, others):
    rows = published_rows(benchmark, backbone)
    assert sum(row.short == "BEE paper" for row in rows) == paper
    assert sum(row.short == "TTA repo" for row in rows) == others
    assert all(0 < row.mean < 100 for row in rows)


def test_headline_numbers():
    def mean(benchmark: str, backbone: str, method: str) -> list[float]:
        return [row.mean for row in published_rows(benchmark, backbone, method)]

    assert mean("cifar10-c", "wrn-28-10", "bee") == [12.7]
    assert mean("cifar10-c", "wrn-28-10", "bee-paper") == [12.7]
    assert mean("cifar100-c", "resnext29-4x32", "bee") == [27.8]
    assert mean("imagenet-c", "resnet50", "bee") == [57.9]
    assert mean("imagenet-c", "vit-b16-224", "bee") == [38.7]
    assert mean("imagenet-c", "resnet50", "eata") == [60.3, 58.0]
    (roid,) = published_rows("imagenet-c", "resnet50", "roid")
    assert (roid.mean, roid.std, roid.domains) == (54.5, 0.1, None)


def test_ablations_are_apart_and_end_in_the_main_result():
    lines = published_rows("imagenet-c", "resnet50", "bee", variants=True)
    assert len(lines) == 8 + 9
    full = [row for row in lines if row.mean == 57.9]
    assert [row.variant for row in full] == [
        {"trigger": "mcr loss", "interval": None, "merging": "weighted"},
        {
            "entropy": True,
            "mcr_blocks": [4, 3, 2],
            "sample_queue": True,
            "anchor_replay": True,
        },
    ]
