"""BEE's warm-up on source images: codebooks and blocks, once, kept as a file.

The paper follows RMT's warm-up (50,000 images, learning rate rising from 0, student and teacher
held together by a symmetric cross-entropy), but trains only the shallow blocks and the codebooks,
which that loss does not reach: so the multi-level loss is added to it.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from bombus.data.augment import VIEWS
from bombus.data.fetch import cache_folder
from bombus.errors import CheckpointError, DataError
from bombus.losses.divergence import symmetric_cross_entropy
from bombus.losses.precision import at_least_single
from bombus.methods._bursts import take_statistics
from bombus.methods._caution import short_warmup
from bombus.methods._codebooks import draw_codes, random_codes, usable
from bombus.methods._consistency import multilevel_loss
from bombus.methods._optim import are_finite, make_optimizer, ramp
from bombus.methods._progress import LOG, with_progress
from bombus.methods._rehearsal import keeping
from bombus.methods._source import GatedSource, image_batches
from bombus.methods._warmup_file import (
    load_warmup,
    save_warmup,
    source_answers,
    trained_parameters,
)
from bombus.methods._warmup_key import fingerprint

if TYPE_CHECKING:
    from bombus.methods.base import Source
    from bombus.methods.bee import Bee

# The WRN-16-1 answers 12 % of clean mirrored images otherwise, at most 19 % in batches of 32;
# where half of the classes are mirror images of each other it is half.
TOO_MANY_DIFFER = 0.35
ENOUGH_TO_TELL = 32
KEPT = 16  # warm-ups in the cache
STATISTICS = 5000  # images that they are taken of
# Where no number of rounds is given: 3, and of a source too small for 300 steps up to 30.
ROUNDS, MOST_ROUNDS, STEPS = 3, 30, 300
NO_FINITE_ANSWER = (
    "The network answers none of the source images with finite numbers, so that nothing can be "
    "learnt from them; check its weights and how the images are normalised."
)


def shallow_blocks(blocks: Sequence[str]) -> tuple[str, ...]:
    """What adapts where nobody says: a CNN's first level, a transformer's first half."""
    last = re.fullmatch(r"(?P<prefix>.*?)(?:\d+-)?(?P<last>\d+)", blocks[-1])
    if last and all("-" in name for name in blocks):
        half = (int(last["last"]) + 1) // 2
        return (f"{last['prefix']}0-{half - 1}",)
    return (blocks[0],)


def warm_up(bee: Bee, source: Source) -> None:
    """Take the warm-up from a file, from the cache, or do it now and cache it."""
    if isinstance(source, str | Path):
        load_warmup(bee, Path(source))
        return
    batches = _usable(bee, source)
    first = next(batches, None)
    if first is None:
        raise DataError(
            "The source has no images to learn from; give at least one batch of them, of two or "
            "more where the network has BatchNorm."
        )
    if len(first) >= ENOUGH_TO_TELL:
        look_into_the_mirror(bee, bee.teach(bee.passes.views(first)).logits)
    a_round, rounds = math.ceil(bee.config.warmup_images / len(first)), 1
    if isinstance(source, Sized):
        a_round = min(a_round, len(source))
        few = min(MOST_ROUNDS, math.ceil(STEPS / a_round))
        rounds = bee.config.warmup_rounds or max(ROUNDS, few)
    bee.config = replace(bee.config, warmup_rounds=rounds)
    cached = cache_folder() / "warmup" / f"{fingerprint(bee, first, source)}.safetensors"
    if _read_cached(bee, cached):
        return
    bee.source_answers = source_answers(bee, first.shape[1:])
    opening = keeping(bee, itertools.chain([first], batches), trained_parameters(bee))
    stream = _Counted(itertools.chain(opening, _again(bee, source)))
    train(bee, stream, a_round, a_round * rounds)
    bee.source_bytes = source.bytes if isinstance(source, GatedSource) else None
    passes = _seen_again(bee, source) if isinstance(source, Sized) else ()
    if not take_statistics(bee.model, passes) and bee.config.bursts:
        bee.event(
            "no statistics",
            reason="the source can be read only once, or the network answers it with NaN, so that "
            "bursts falls back on the statistics of the network as it was given; give a list or a "
            "data loader with a length",
        )
    if found := short_warmup(stream.read, a_round * rounds):
        # Not kept: a longer source without a length may begin with the same batch.
        bee.event("warm-up cut short", **found)
        return
    _cache(bee, cached)


def look_into_the_mirror(bee: Bee, logits: Tensor, too_many: float = TOO_MANY_DIFFER) -> None:
    """Text, digits and signs change their class in a mirror, and `bee` learns that they do not."""
    if bee.passes.views_count < 2 or len(logits) < 2 * ENOUGH_TO_TELL:
        return
    image, mirror_image = logits.argmax(1).chunk(2)
    share = (image != mirror_image).float().mean().item()
    if share > too_many:
        bee.event(
            "mirror images differ",
            share=round(share, 3),
            reason=f"the network answers {share:.0%} of mirrored images otherwise; if their class "
            "does change in a mirror, set views to one",
        )


def _read_cached(bee: Bee, file: Path) -> bool:
    """Whether it was there. Nobody wrote it by hand: one that cannot be used is made again."""
    try:
        if not file.exists():
            return False
        load_warmup(bee, file)
    except (CheckpointError, OSError):
        bee.event("warm-up made again", reason=f"{file} is damaged, or of something else")
        return False
    with suppress(OSError):  # a cache that is only to be read serves as well
        os.utime(file)  # the one that was not used for longest goes first
    LOG.info("warming up: done before, taken from %s", file)
    return True


def _cache(bee: Bee, file: Path) -> None:
    """Keep the warm-up for the next time. This time does not hang on it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_warmup(bee, file)
        # A source in a new order makes another one at every call; they must not fill the disk.
        kept = sorted(file.parent.glob("*.safetensors"), key=_last_used)
        for old in kept[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        bee.event(
            "warm-up not kept",
            reason=f"{file.parent} cannot be written to ({error.strerror}); set BOMBUS_CACHE to "
            "another folder",
        )


def _last_used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another process has just dropped it
        return 0.0


class _Counted:
    """Batches, and how many of them were asked for."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.batches = batches
        self.read = 0

    def __iter__(self) -> Iterator[Tensor]:
        for x in self.batches:
            self.read += 1
            yield x


def _usable(bee: Bee, source: Source) -> Iterator[Tensor]:
    fewest = 2 if bee.alone_is_too_few else 1
    for x in image_batches(source, bee.parameters[0].device):
        if len(x) >= fewest:
            yield x


def _again(bee: Bee, source: Source) -> Iterator[Tensor]:
    """Further rounds through a source that can be read more than once."""
    found = isinstance(source, Sized)
    while found:
        found = False
        for x in _usable(bee, source):
            found = True
            yield x


def _seen_again(bee: Bee, source: Source) -> Iterator[None]:
    """The averaged network sees source images, as it saw them when it learnt: under the statistics
    of clean ones it is less sure in new domains (extras and pairs, WRN-16-1: 30.1, so 27.5)."""
    seen, view = 0, VIEWS[bee.config.warmup_view]
    for x in _usable(bee, source):
        bee.passes(bee.view(view, bee.passes.views(x)), bee.teacher)
        yield
        if (seen := seen + len(x)) >= STATISTICS:
            return


def train(bee: Bee, batches: Iterable[Tensor], a_round: int, total: int) -> None:
    """`total` steps over batches that repeat themselves after `a_round` of them."""
    config = bee.config
    batches = iter(batches)
    # Codes are learnt for every level, so that the file serves whichever levels a stream sums; the
    # others pull on nothing.
    bee.passes.levels = tuple(range(1, len(bee.blocks) + 1))
    opening = _start_codes(bee, itertools.islice(batches, a_round))
    codes = [c.requires_grad_(True) for c in bee.codebooks.student.values()]
    trained = trained_parameters(bee)
    for p in trained.values():
        p.requires_grad_(True)
    bee.teacher = {name: p.detach().clone() for name, p in trained.items()}
    parameters = list(trained.values())
    body = make_optimizer(parameters, config.warmup_optimizer, config.warmup_lr)
    code = torch.optim.Adam(codes, lr=config.warmup_code_lr)
    climb = ramp(body, code)
    stream = itertools.islice(itertools.chain(opening, batches), total)
    step = dropped = 0
    for step, x in enumerate(with_progress(stream, total), start=1):
        climb(step, total)
        views = bee.passes.views(x)
        teacher = bee.teach(views)
        student = bee.passes(bee.view(VIEWS[config.warmup_view], views))
        loss, _ = multilevel_loss(bee, student, teacher)
        agree = disagreement(student.logits, teacher.logits, config.warmup_loss)
        gradients = torch.autograd.grad(loss + agree, [*parameters, *codes], materialize_grads=True)
        if not are_finite(gradients):
            dropped += 1
            continue
        for leaf, gradient in zip([*parameters, *codes], gradients, strict=True):
            leaf.grad = gradient
        body.step()
        code.step()
        with torch.no_grad():
            for c in codes:
                c.copy_(F.normalize(c, dim=1))
        bee.follow()
        bee.codebooks.follow(config.momentum)
        bee.codebooks.remember(teacher.descriptors, len(x))
    _tell_of_dropped(bee, dropped, step)
    bee.passes.levels = bee.levels
    for p in parameters:
        p.grad = None
    for level, c in bee.codebooks.student.items():
        bee.codebooks.student[level] = c.detach()
    # What does not adapt exists once: the average, which is the better network.
    averaged = trained if config.warmup_leaves == "average" else bee.deep.parameters
    with torch.no_grad():
        for name, p in averaged.items():
            p.copy_(bee.teacher[name])
    bee.teacher = {name: bee.teacher[name] for name in bee.adapted}
    for p in bee.deep.parameters.values():
        p.requires_grad_(False)
    bee.deep.changed = bool(bee.deep.parameters)


def _tell_of_dropped(bee: Bee, dropped: int, steps: int) -> None:
    """Steps that were not made: the images are finite, the network's answers are not."""
    if dropped == steps:
        raise DataError(NO_FINITE_ANSWER)
    if dropped:
        bee.event(
            "preparation steps dropped",
            steps=dropped,
            reason=f"{dropped} of {steps} steps had gradients that are not finite; look which "
            "source images the network answers with NaN",
        )


def disagreement(student: Tensor, teacher: Tensor, kind: str) -> Tensor:
    if kind == "symmetric":
        return symmetric_cross_entropy(student, teacher).mean()
    return F.cross_entropy(at_least_single(student), at_least_single(teacher).softmax(1))


def _start_codes(bee: Bee, batches: Iterator[Tensor]) -> list[Tensor]:
    """Begin every level's codes; the batches used for it come back, to be trained on as well."""
    opening: list[Tensor] = []
    seen: dict[int, list[Tensor]] = {level: [] for level in bee.passes.levels}
    while sum(map(len, opening)) < 2 * bee.config.codes:
        x = next(batches, None)
        if x is None:
            break
        opening.append(x)
        for level, descriptor in bee.teach(x).descriptors.items():
            seen[level].append(usable(descriptor))
    for level in bee.passes.levels:
        descriptors = torch.cat(seen[level])
        if not len(descriptors):
            raise DataError(NO_FINITE_ANSWER)
        make = draw_codes if bee.config.code_start == "descriptors" else _random
        bee.codebooks.start(level, make(descriptors, bee.config.codes, bee.generator))
    return opening


def _random(descriptors: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return random_codes(count, descriptors, generator)
