"""Harder domains to choose constants on: two of the four extra corruptions, one upon the other.

The four themselves are copied along, for streams of mild and hard domains.

    python lab/double.py EXTRAS OUT        # EXTRAS as made by `bombus data make ... --corruptions`

The four extras are mild, so that on them nothing tells a setting that drifts or hardly learns from
a good one; the 15 test domains are for reporting only. The six pairs are about as hard as those.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch

from bombus.data.cifar_c import SIDECAR, CifarC
from bombus.data.corruptions import corrupt

PAIRS = (
    ("speckle_noise", "gaussian_blur"),
    ("spatter", "gaussian_blur"),
    ("saturate", "speckle_noise"),
    ("gaussian_blur", "saturate"),
    ("spatter", "speckle_noise"),
    ("spatter", "saturate"),
)
SEVERITY = 5  # of the first, as the files have it
SECOND = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("extras", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = CifarC(options.extras)
    options.out.mkdir(parents=True, exist_ok=True)
    for first, second in PAIRS:
        index = torch.arange(images.size(first))
        once = torch.from_numpy(np.load(options.extras / f"{first}.npy")).permute(0, 3, 1, 2)
        pieces = [
            corrupt(once[part].to(device), second, SECOND, index=part, seed=1).cpu()
            for part in index.split(2000)
        ]
        twice = torch.cat(pieces).permute(0, 2, 3, 1).contiguous().numpy()
        np.save(options.out / f"{first}+{second}.npy", twice)
    for name in ("labels", *sorted({name for pair in PAIRS for name in pair})):
        shutil.copy(options.extras / f"{name}.npy", options.out)
    made = {"first": SEVERITY, "second": SECOND, "by": "lab/double.py"}
    sidecar = {"variant": "cifar10-c", "severities": [SEVERITY], "generator": made}
    (options.out / SIDECAR).write_text(json.dumps(sidecar))


if __name__ == "__main__":
    main()
