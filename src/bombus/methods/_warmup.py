"""BEE's warm-up on source images: codebooks and blocks, once, kept as a file.

The paper follows RMT's warm-up (50,000 images, learning rate rising from 0, student and teacher
held together by a symmetric cross-entropy), but trains only the shallow blocks and the codebooks,
which that loss does not reach: so the multi-level loss is added to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as format_tensors
from torch import Tensor

from bombus import checkpoint
from bombus.data.augment import VIEWS
from bombus.data.fetch import cache_folder
from bombus.errors import CheckpointError, DataError
from bombus.losses.divergence import symmetric_cross_entropy
from bombus.methods._codebooks import draw_codes, random_codes
from bombus.methods._optim import make_optimizer
from bombus.methods._progress import with_progress
from bombus.methods._source import Counted, image_batches

if TYPE_CHECKING:
    from bombus.methods.base import Source
    from bombus.methods.bee import Bee

HEADER = "bombus.warmup"
CODES = "student codes"
# What an artefact must share with the adapter that reads it.
STRUCTURE = ("last_descriptor", "tokens", "codes")
# What else decides how a warm-up comes out: recorded with it, and part of its name in the cache.
DECISIVE = (
    "levels", "trained", "level_weights", "code_start", "tau_student", "tau_teacher",
    "sinkhorn_iterations", "feature_queue", "momentum", "views", "prediction_weight",
    "warmup_images", "warmup_rounds", "warmup_view", "warmup_optimizer", "warmup_lr",
    "warmup_code_lr", "seed",
)  # fmt: skip


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
    device = bee.parameters[0].device
    batches = image_batches(source, device)
    first = next(batches, None)
    if first is None:
        raise DataError("The source has no images; give at least one batch of them.")
    cached = cache_folder() / "warmup" / f"{_fingerprint(bee, first, source)}.safetensors"
    if cached.exists():
        load_warmup(bee, cached)
        return
    a_round = total = math.ceil(bee.config.warmup_images / len(first))
    if isinstance(source, Sized):
        a_round = min(a_round, len(source))
        total = a_round * bee.config.warmup_rounds
    train(bee, itertools.chain([first], batches, _again(source, device)), a_round, total)
    bee.source_bytes = source.bytes if isinstance(source, Counted) else None
    cached.parent.mkdir(parents=True, exist_ok=True)
    save_warmup(bee, cached)


def _again(source: Source, device: torch.device) -> Iterator[Tensor]:
    """Further rounds through a source that can be read more than once."""
    found = isinstance(source, Sized)
    while found:
        found = False
        for x in image_batches(source, device):
            found = True
            yield x


def train(bee: Bee, batches: Iterable[Tensor], a_round: int, total: int) -> None:
    """`total` steps over batches that repeat themselves after `a_round` of them."""
    config = bee.config
    batches = iter(batches)
    # Codes are learnt for every level, so that the file serves whichever levels a stream sums; the
    # others pull on nothing.
    bee.passes.levels = tuple(range(1, len(bee.blocks) + 1))
    opening = _start_codes(bee, itertools.islice(batches, a_round))
    codes = [c.requires_grad_(True) for c in bee.codebooks.student.values()]
    trained = _trained(bee)
    for p in trained.values():
        p.requires_grad_(True)
    bee.teacher = {name: p.detach().clone() for name, p in trained.items()}
    parameters = list(trained.values())
    body = make_optimizer(parameters, config.warmup_optimizer, config.warmup_lr)
    code = torch.optim.Adam(codes, lr=config.warmup_code_lr)
    stream = itertools.islice(itertools.chain(opening, batches), total)
    for step, x in enumerate(with_progress(stream, total), start=1):
        for optimizer, lr in ((body, config.warmup_lr), (code, config.warmup_code_lr)):
            optimizer.param_groups[0]["lr"] = lr * step / total
        views = bee.passes.views(x)
        teacher = bee.teach(views)
        student = bee.passes(VIEWS[config.warmup_view](views, bee.generator))
        loss, _ = bee.consistency(student, teacher, remember=len(x))
        agree = symmetric_cross_entropy(student.logits, teacher.logits).mean()
        gradients = torch.autograd.grad(loss + agree, [*parameters, *codes])
        for leaf, gradient in zip([*parameters, *codes], gradients, strict=True):
            leaf.grad = gradient
        body.step()
        code.step()
        with torch.no_grad():
            for c in codes:
                c.copy_(F.normalize(c, dim=1))
        bee.follow()
        bee.codebooks.follow(config.momentum)
    bee.passes.levels = bee.levels
    for p in parameters:
        p.grad = None
    for level, c in bee.codebooks.student.items():
        bee.codebooks.student[level] = c.detach()
    # Student and teacher go on from the teacher, whose average is the better network.
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(bee.teacher[name])
    bee.teacher = {name: p.detach().clone() for name, p in bee.adapted.items()}
    for p in bee.deep.parameters.values():
        p.requires_grad_(False)
    bee.deep.changed = bool(bee.deep.parameters)


def save_warmup(bee: Bee, path: Path) -> None:
    books = bee.codebooks
    tensors = {
        **{f"weights/{name}": p.detach() for name, p in _trained(bee).items()},
        **{f"{CODES}/{level}": c for level, c in books.student.items()},
        **{f"teacher codes/{level}": c for level, c in books.teacher.items()},
        **{f"queue/{level}": q for level, q in books.queue.items()},
    }
    header = {
        "source_sha256": bee.source_sha256,
        "source_bytes": bee.source_bytes,
        "config": _settings(bee),
    }
    data = format_tensors(
        {name: t.cpu().contiguous() for name, t in tensors.items()},
        metadata={HEADER: json.dumps(header)},
    )
    checkpoint.write_bytes(path, data)


def load_warmup(bee: Bee, path: Path) -> None:
    try:
        with safe_open(path, framework="pt") as reader:
            header = json.loads((reader.metadata() or {})[HEADER])
            names = reader.keys()
            tensors = {name: reader.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise CheckpointError(
            f"There is no warm-up file {path}; make it with `bombus warmup`."
        ) from None
    except (SafetensorError, OSError, KeyError, ValueError):
        raise CheckpointError(
            f"{path} is no whole warm-up file; make it again with `bombus warmup`."
        ) from None
    if header["source_sha256"] != bee.source_sha256:
        raise CheckpointError(
            f"The warm-up {path} belongs to other weights (sha256 {header['source_sha256'][:12]}, "
            f"this model has {bee.source_sha256[:12]}); make one for this model."
        )
    mine = _settings(bee)
    for name in STRUCTURE:
        if header["config"][name] != mine[name]:
            raise CheckpointError(
                f"The warm-up {path} was made with {name}={header['config'][name]}, this adapter "
                f"has {mine[name]}; make one with the same settings."
            )
    coded = {int(name.partition("/")[2]) for name in tensors if name.startswith(CODES)}
    if absent := sorted(set(bee.levels) - coded):
        raise CheckpointError(
            f"The warm-up {path} has codes for levels {sorted(coded)}, not for level {absent[0]}; "
            "make it again with `bombus warmup`."
        )
    if header["config"]["trained"] != mine["trained"]:
        raise CheckpointError(
            f"The warm-up {path} was made for {len(header['config']['trained'])} parameters, this "
            f"adapter prepares {len(mine['trained'])} of this model's; make one with the same "
            "warmup_blocks, adapts and shallow."
        )
    bee.source_bytes = header["source_bytes"]
    _fill(bee, tensors)


def _fill(bee: Bee, tensors: dict[str, Tensor]) -> None:
    device = bee.parameters[0].device
    trained, books = _trained(bee), bee.codebooks
    stores = {
        CODES: books.student,
        "teacher codes": books.teacher,
        "queue": books.queue,
    }
    with torch.no_grad():
        for name, tensor in tensors.items():
            kind, _, key = name.partition("/")
            value = tensor.to(device)
            if kind == "weights":
                trained[key].copy_(value)
                if key in bee.teacher:
                    bee.teacher[key].copy_(value)
            else:
                stores[kind][int(key)] = value
    bee.deep.changed = bool(bee.deep.parameters)


def _trained(bee: Bee) -> dict[str, torch.nn.Parameter]:
    """What a warm-up trains: the blocks that adapt, and the others where they are prepared."""
    return {**bee.adapted, **bee.deep.parameters}


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
            seen[level].append(descriptor)
    for level in bee.passes.levels:
        descriptors = torch.cat(seen[level])
        make = draw_codes if bee.config.code_start == "descriptors" else _random
        bee.codebooks.start(level, make(descriptors, bee.config.codes, bee.generator))
    return opening


def _random(descriptors: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return random_codes(count, descriptors, generator)


def _settings(bee: Bee) -> dict[str, Any]:
    """What decides a warm-up, as JSON would give it back, with what "default" came to mean."""
    resolved = {"levels": bee.levels, "trained": sorted(_trained(bee))}
    asked = {**asdict(bee.config), **resolved}
    kept = {name: asked[name] for name in (*STRUCTURE, *DECISIVE)}
    settings: dict[str, Any] = json.loads(json.dumps(kept))
    return settings


def _fingerprint(bee: Bee, first: Tensor, source: Source) -> str:
    """Of everything that decides a warm-up: the network, the settings, the source images.

    Of these only the first batch and how many there are: to read all would take as long as to learn
    from them.
    """
    device = first.device.type
    facts = {
        **_settings(bee),
        "batches": len(source) if isinstance(source, Sized) else None,
        "autocast": str(torch.get_autocast_dtype(device))
        if torch.is_autocast_enabled(device)
        else None,
    }
    digest = hashlib.sha256(bee.source_sha256.encode())
    digest.update(json.dumps(facts, sort_keys=True).encode())
    digest.update(first.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
