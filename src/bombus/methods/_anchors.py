"""Earlier states of a student, and merging them by how much they disagree: BEE's Eqs. 11-13.

An anchor is one flat tensor, all trainable parameters of the student after each other: the rest of
the network is frozen and the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bombus.errors import ConfigError
from bombus.losses.divergence import pairwise_symmetric_kl, symmetric_kl
from bombus.losses.precision import at_least_single

if TYPE_CHECKING:
    from bombus.methods._bee_config import BeeConfig
    from bombus.methods.bee import Bee

DEVICE_BYTES = 4 * 2**30  # a full pool larger than this is kept on the host


def on_host(config: BeeConfig, bytes_an_anchor: int) -> bool:
    """Whether anchors of this size are kept in the computer's memory, not the GPU's."""
    if config.anchor_storage == "auto":
        return bytes_an_anchor * config.anchors > DEVICE_BYTES
    return config.anchor_storage == "host"


class AnchorPool:
    """The most recent anchors, and the protected ones for ever.

    `numbers` counts anchors from 0 in the order they were stored, whatever left since: it names an
    anchor in a log where its index in the pool would change its meaning.

    Args:
        capacity: how many anchors are kept.
        on_host: keep them in the CPU's memory in half precision, whatever the network's device:
            fifty of a ViT-B's six blocks would take 8.5 GB of a GPU, so they take 4.3 GB beside it.
    """

    def __init__(self, capacity: int = 50, *, on_host: bool = False) -> None:
        if capacity < 1:
            raise ConfigError(f"Got a pool of {capacity} anchors, expected at least 1.")
        self.capacity = capacity
        self.on_host = on_host
        self.numbers: list[int] = []
        self._anchors: list[Tensor] = []
        self._protected: list[bool] = []
        self._stored = 0

    def __len__(self) -> int:
        return len(self._anchors)

    def __getitem__(self, index: int) -> Tensor:
        """The anchor itself, not a copy: not to be written to."""
        return self._anchors[index]

    def store(self, flat: Tensor, *, protected: bool = False) -> None:
        """Keep a copy; in a full pool the oldest anchor that is not protected makes room."""
        if len(self) == self.capacity:
            if all(self._protected):
                raise ConfigError(
                    f"All {self.capacity} anchors are protected, so there is no room for another; "
                    "make the pool larger."
                )
            oldest = self._protected.index(False)
            for row in (self._anchors, self.numbers, self._protected):
                del row[oldest]
        self._anchors.append(self._kept(flat.detach().clone()))
        self.numbers.append(self._stored)
        self._protected.append(protected)
        self._stored += 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "anchors": list(self._anchors),
            "numbers": list(self.numbers),
            "protected": list(self._protected),
            "stored": self._stored,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._anchors = [self._kept(anchor) for anchor in state["anchors"]]
        self.numbers = list(state["numbers"])
        self._protected = list(state["protected"])
        self._stored = state["stored"]

    def _kept(self, flat: Tensor) -> Tensor:
        return flat.to("cpu", torch.float16) if self.on_host else flat


def flatten(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters in one new 1-D tensor, in the order given."""
    return torch.cat([p.detach().reshape(-1) for p in parameters])


def unflatten(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters inside a flat tensor, by name: views, so nothing is copied.

    `like` gives names, shapes and order; the order must be the one `flatten` was given.
    """
    total = sum(p.numel() for p in like.values())
    if flat.shape != (total,):
        raise ValueError(
            f"Got a flat tensor of shape {tuple(flat.shape)} for parameters of {total} numbers; "
            "an anchor belongs to the network and blocks it was taken from."
        )
    views = torch.split(flat, [p.numel() for p in like.values()])
    return {name: view.view(like[name].shape) for name, view in zip(like, views, strict=True)}


def merge_complementary(
    student: Tensor,
    anchors: AnchorPool,
    log_probabilities: Callable[[Tensor], Tensor],
    k: int,
    *,
    plain_average: bool = False,
) -> tuple[Tensor, list[int], Tensor]:
    """The student merged with the k anchors that differ most from it, which, and the weights.

    `log_probabilities` gives a flat model's (N, C) predictions of the batch at hand.
    """
    log_p = log_probabilities(student)
    log_anchors = [log_probabilities(anchors[i]) for i in range(len(anchors))]
    divergences = torch.stack([symmetric_kl(log_p, q) for q in log_anchors])  # Eq. 10
    chosen = choose(divergences, k)  # Eq. 11
    pairwise = pairwise_symmetric_kl([log_p, *(log_anchors[i] for i in chosen)])
    weights = merge_weights(pairwise)  # Eq. 12
    if plain_average:
        weights = torch.full_like(weights, 1 / len(weights))
    return merge([student, *(anchors[i] for i in chosen)], weights), chosen, weights  # Eq. 13


def choose(divergences: Tensor, k: int) -> list[int]:
    """The k anchors furthest from the student, furthest first, the lower index on a tie (Eq. 11).

    An anchor whose divergence is not finite predicts nonsense and is never chosen.
    """
    values = divergences.tolist()
    usable = [i for i, finite in enumerate(divergences.isfinite().tolist()) if finite]
    return sorted(usable, key=lambda i: -values[i])[:k]  # stable, so ties keep their order


def merge_weights(pairwise: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax over models of each one's total divergence from the others (Eq. 12), (K,).

    The paper's temperature is 1; a large one tends to plain averaging.
    """
    # The diagonal is zero, so the sum over all of S is the sum over the others. softmax subtracts
    # the largest first: divergences of confident models would overflow exp.
    return (pairwise.sum(1) / temperature).softmax(0)


def merge(models: Sequence[Tensor], weights: Tensor) -> Tensor:
    """The weighted sum of flat models, on the first one's device and in its dtype (Eq. 13)."""
    merged = torch.zeros_like(models[0])
    for model, weight in zip(models, weights.tolist(), strict=True):
        # One after the other: six stacked ViT anchors would take 1 GB for a moment.
        merged.add_(model.to(merged), alpha=weight)
    return merged


def log_probabilities(bee: Bee, flat: Tensor, views: Tensor) -> Tensor:
    """Of a batch's images, by the student as an anchor has it."""
    here = flat.to(bee.parameters[0])  # an anchor may lie on the host, in half precision
    logits = bee.passes(views, unflatten(here, bee.adapted)).logits
    return at_least_single(bee.passes.mean(logits)).log_softmax(1)


@torch.no_grad()
def replay(bee: Bee, views: Tensor) -> None:
    """The student goes to the merged anchors, all the way or a part of it; the event says which."""
    config: BeeConfig = bee.config
    if config.replay == "source":
        merged, chosen, weights = bee.anchors[0], [0], torch.ones(1)
    else:
        merged, chosen, weights = merge_complementary(
            flatten(bee.parameters),
            bee.anchors,
            lambda flat: log_probabilities(bee, flat, views),
            config.complementary,
            plain_average=config.replay == "average",
        )
    for name, value in unflatten(merged, bee.adapted).items():
        bee.adapted[name].lerp_(value.to(bee.adapted[name]), config.replay_share)
    bee.event(
        "replay",
        anchors=[bee.anchors.numbers[i] for i in chosen],
        weights=[round(w, 4) for w in weights.tolist()],
    )
