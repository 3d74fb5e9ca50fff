"""The same WideResNet in other numbers, to see how far a learning rate belongs to them.

    python lab/rescale.py WEIGHTS... --convolutions 8 --norms 0.33 --backbone wrn-28-10 --out FILE

BatchNorm divides by whatever the layer before it is multiplied with, and a rectifier lets a factor
through: convolutions and BatchNorm's scales and shifts can be multiplied, and the statistics and
the classifier with them, so that every answer stays what it was. But Adam's first steps are as
large as the learning rate, whatever the gradient: what they do depends on how large the weights
are. The file is checked against the original on random images before it is written.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bombus.backbones import create
from bombus.backbones.weights import load_weights
from bombus.methods._norm import use_batch_statistics


def rescale(state: dict[str, Tensor], convolutions: float, norms: float) -> dict[str, Tensor]:
    """Convolutions times one factor, BatchNorm's parameters times the other."""
    seen = convolutions * norms  # what each BatchNorm sees more of than before
    factors = {"running_mean": seen, "running_var": seen**2}
    result = {}
    for name, value in state.items():
        layer, kind = name.rsplit(".", 1)
        if value.ndim == 4:
            # No BatchNorm stands before the first one.
            factor = seen if name == "conv1.weight" else convolutions
        elif layer == "fc":
            factor = 1 / norms if kind == "weight" else 1.0
        elif kind in ("weight", "bias"):
            factor = norms
        else:
            factor = factors.get(kind, 1.0)
        result[name] = value * factor if factor != 1 else value
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--backbone", default="wrn-28-10")
    parser.add_argument("--convolutions", type=float, default=1.0)
    parser.add_argument("--norms", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    network = create(options.backbone, num_classes=10)
    load_weights(network, options.weights)
    before = deepcopy(network)
    state = rescale(network.state_dict(), options.convolutions, options.norms)
    network.load_state_dict(state)
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for model in (before, network):
        model.eval()
    for statistics in ("the source's", "the batch's"):
        with torch.no_grad():
            apart = (before(x) - network(x)).abs().max().item()
        print(f"with {statistics} statistics logits differ by {apart:.1e} at most")
        if apart > 0.05:
            raise SystemExit("That is another network; nothing was written.")
        use_batch_statistics(before)
        use_batch_statistics(network)
    save_file({name: value.contiguous() for name, value in state.items()}, options.out)


if __name__ == "__main__":
    main()
