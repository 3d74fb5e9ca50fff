"""The same WideResNet in other numbers, to see how far a learning rate belongs to them.

    python lab/rescale.py WEIGHTS... --convolutions 8 --norms 0.33 --backbone wrn-28-10 --out FILE
    python lab/rescale.py WEIGHTS... --as-begun --norms 0.33 --backbone wrn-28-10 --out FILE

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
from statistics import median

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


def as_begun(state: dict[str, Tensor], norms: float) -> dict[str, Tensor]:
    """Every convolution of a block as spread as it is before training, normal(0, 2 / (9 out)).

    What a block's second convolution gives is added to what the other blocks of its stage give, so
    that these share a factor; the BatchNorm before it makes up for its own. The norms' parameters
    are multiplied by about `norms`, the first of each block by just that.
    """
    begun = {
        name: (2 / (value.shape[0] * value[0, 0].numel())) ** 0.5 / value.std().item()
        for name, value in state.items()
        if value.ndim == 4
    }
    stages = sorted({name.split(".")[0] for name in state if name.startswith("block")})
    layers = {s: sorted({n.split(".")[2] for n in state if n.startswith(f"{s}.")}) for s in stages}
    factors: dict[str, float] = {}
    seen = 1.0  # by how much the sum that enters a block has grown
    for stage in stages:
        paths = [f"{stage}.layer.{number}" for number in layers[stage]]
        grown = norms * median(begun[f"{path}.conv2.weight"] for path in paths)
        if f"{paths[0]}.convShortcut.weight" not in state:  # what enters is added as it is
            factors["conv1.weight"] = seen = grown
        for path in paths:
            first, second = begun[f"{path}.conv1.weight"], begun[f"{path}.conv2.weight"]
            factors |= _norm(f"{path}.bn1", seen, norms)
            factors[f"{path}.conv1.weight"] = first
            factors |= _norm(f"{path}.bn2", norms * first, grown / second)
            factors[f"{path}.conv2.weight"] = second
            factors[f"{path}.convShortcut.weight"] = grown / norms
            seen = grown
    factors |= _norm("bn1", seen, norms)
    factors["fc.weight"] = 1 / norms
    return {n: value * factors[n] if n in factors else value for n, value in state.items()}


def _norm(name: str, seen: float, own: float) -> dict[str, float]:
    return {
        f"{name}.running_mean": seen,
        f"{name}.running_var": seen**2,
        f"{name}.weight": own,
        f"{name}.bias": own,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--backbone", default="wrn-28-10")
    parser.add_argument("--convolutions", type=float, default=1.0)
    parser.add_argument("--norms", type=float, default=1.0)
    parser.add_argument("--as-begun", action="store_true", help="each layer by its own factor")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    network = create(options.backbone, num_classes=10)
    load_weights(network, options.weights)
    before = deepcopy(network)
    state = network.state_dict()
    if options.as_begun:
        state = as_begun(state, options.norms)
    else:
        state = rescale(state, options.convolutions, options.norms)
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
