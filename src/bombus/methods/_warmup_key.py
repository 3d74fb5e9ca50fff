"""What a warm-up is called in the cache: a digest of everything that decides it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sized
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from bombus.methods._source import GatedSource
from bombus.methods._warmup_file import deciding_settings

if TYPE_CHECKING:
    from bombus.methods.base import Source
    from bombus.methods.bee import Bee


def fingerprint(bee: Bee, first: Tensor, source: Source) -> str:
    """Of the network, the settings and the source images.

    Of these only some and how many there are: to read all would take as long as to learn from them.
    """
    device = first.device.type
    facts = {
        **deciding_settings(bee),
        "batches": len(source) if isinstance(source, Sized) else None,
        "autocast": str(torch.get_autocast_dtype(device))
        if torch.is_autocast_enabled(device)
        else None,
    }
    digest = hashlib.sha256(bee.source_sha256.encode())
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for some in _telling(first, source, bee.config.warmup_images):
        # As bytes: numpy knows no bfloat16.
        digest.update(some.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _telling(first: Tensor, source: Source, read: int) -> list[Tensor]:
    """Images that tell one source from another: the first batch and, of a loader, as many more.

    They are from all over the `read` images that it reads: in sorted folders the first ones are of
    one class. Where a loader shuffles, the first batch is another one at every call: so not that.
    """
    loader = source.source if isinstance(source, GatedSource) else None
    if not isinstance(loader, DataLoader) or type(loader.sampler) not in (
        RandomSampler,
        SequentialSampler,
    ):
        return [first]
    images: Any = loader.dataset
    shuffles = type(loader.sampler) is RandomSampler
    whole = loader.batch_sampler is None  # then an item is a batch
    last = (len(images) if shuffles or whole else min(read, len(images))) - 1
    places = torch.linspace(
        0, last, 2 if whole else len(first), dtype=torch.float64, device="cpu"
    ).long()
    # An augmentation may draw. (Where a loader shuffles, it always could from numpy.)
    with torch.random.fork_rng([]), nullcontext() if shuffles else _undrawn():
        items = [images[place] for place in places.tolist()]
        collate = loader.collate_fn
        batches = [collate(item) for item in items] if whole else [collate(items)]
    told = [batch[0] if isinstance(batch, tuple | list) else batch for batch in batches]
    return told if shuffles else [first, *told]


@contextmanager
def _undrawn() -> Iterator[None]:
    """The generators of everybody come out as they went in."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
