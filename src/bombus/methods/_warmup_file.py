"""BEE's warm-up as a file: what it learnt, and what it was made of and for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as format_tensors
from torch import Tensor

from bombus import checkpoint
from bombus.errors import CheckpointError
from bombus.methods._norm import source_moments, source_statistics

if TYPE_CHECKING:
    from bombus.methods.bee import Bee

HEADER = "bombus.warmup"
CODES = "student codes"
WEIGHTS, TEACHER = "weights", "teacher weights"  # the second where it has values of its own
IMAGES = "rehearsal"  # where they are kept
STATISTICS = "statistics"  # of the prepared network's BatchNorm; not in earlier versions
# Of all other tensors, a tensor itself: the header is what tells a run's warm-up from another, and
# one made again on another device may differ in rounding.
DIGEST = "sha256"
ROUNDING = 0.1  # of the largest logit: bfloat16's on a WRN-28-10 is a tenth of this
# What an artefact must share with the adapter that reads it.
STRUCTURE = ("last_descriptor", "tokens", "codes")
PLACE = ("blocks", "input")  # and these, but files of earlier versions do not say them
# What else decides how a warm-up comes out: recorded with it, and part of its name in the cache.
DECISIVE = (
    "levels", "trained", "level_weights", "code_start", "tau_student", "tau_teacher",
    "sinkhorn_iterations", "feature_queue", "momentum", "views", "prediction_weight",
    "warmup_images", "warmup_rounds", "warmup_view", "warmup_loss", "warmup_leaves",
    "warmup_optimizer", "warmup_lr", "warmup_code_lr", "seed",
)  # fmt: skip


def save_warmup(bee: Bee, path: Path) -> None:
    books, two = bee.codebooks, bee.config.warmup_leaves == "both"
    tensors = {
        **{f"{WEIGHTS}/{name}": p.detach() for name, p in trained_parameters(bee).items()},
        **({f"{TEACHER}/{n}": t for n, t in bee.teacher.items()} if two else {}),
        **{f"{CODES}/{level}": c for level, c in books.student.items()},
        **{f"teacher codes/{level}": c for level, c in books.teacher.items()},
        **{f"queue/{level}": q for level, q in books.queue.items()},
        **{f"{IMAGES}/{name}": t for name, t in bee.rehearsal.state_dict().items()},
        **{f"{STATISTICS}/{name}": t for name, t in source_moments(bee.model).items()},
    }
    header = {
        "source_sha256": bee.source_sha256,
        "source_bytes": bee.source_bytes,
        "source_answers": bee.source_answers,
        "config": deciding_settings(bee),
    }
    stored = {name: t.cpu().contiguous() for name, t in tensors.items()}
    stored[DIGEST] = _digest(stored)
    data = format_tensors(stored, metadata={HEADER: json.dumps(header)})
    checkpoint.write_bytes(path, data)


def _digest(tensors: Mapping[str, Tensor]) -> Tensor:
    """Of names, types, shapes and values, as 32 bytes: safetensors notices no flipped bit."""
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {tuple(t.shape)} ".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8, device="cpu")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], set[int]]:
    """The header, the tensors, and the levels that have codes."""
    try:
        with safe_open(path, framework="pt") as reader:
            header = _header(reader)
            names = reader.keys()
            tensors = {name: reader.get_tensor(name) for name in names}
        facts = {name: header[name] for name in ("source_sha256", "source_bytes")}
        made = header["config"]
        facts["config"] = {name: made[name] for name in (*STRUCTURE, "trained")}
        facts["config"] |= {name: made[name] for name in PLACE if name in made}
        facts["rounds"] = made.get("warmup_rounds")
        facts["source_answers"] = header.get("source_answers")  # not in earlier versions
        coded = {int(name.partition("/")[2]) for name in tensors if name.startswith(CODES)}
    except FileNotFoundError:
        raise CheckpointError(
            f"There is no warm-up file {path}; make it with `bombus warmup`."
        ) from None
    except (SafetensorError, OSError, LookupError, TypeError, ValueError):
        raise _not_whole(path) from None
    return facts, tensors, coded


def settings_in(path: Path) -> dict[str, Any]:
    """What a warm-up was made with, as its header has it."""
    try:
        with safe_open(path, framework="pt") as reader:
            made: dict[str, Any] = dict(_header(reader)["config"])
    except (SafetensorError, OSError, LookupError, TypeError, ValueError):
        raise _not_whole(path) from None
    return made


def _header(reader: Any) -> Any:
    return json.loads((reader.metadata() or {})[HEADER])


def _not_whole(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is no whole warm-up file; make it again with `bombus warmup`.")


def load_warmup(bee: Bee, path: Path) -> None:
    """Take what the file has; of one that is refused nothing, so that it can be made again."""
    header, tensors, coded = _read(path)
    known = tensors.pop(DIGEST, None)  # not in earlier versions
    if header["source_sha256"] != bee.source_sha256:
        raise CheckpointError(
            f"The warm-up {path} belongs to other weights (sha256 {header['source_sha256'][:12]}, "
            f"this model has {bee.source_sha256[:12]}); make one for this model."
        )
    mine = deciding_settings(bee)
    for name in (*STRUCTURE, *PLACE):
        if header["config"].get(name, mine[name]) != mine[name]:
            raise CheckpointError(
                f"The warm-up {path} was made with {name}={header['config'][name]}, this adapter "
                f"has {mine[name]}; make one with the same settings."
            )
    if not answers_as(bee, header["source_answers"]):
        raise CheckpointError(
            f"The warm-up {path} was made when this network answered otherwise: the same weights, "
            "but another normalisation or another forward; make one for it as it is now."
        )
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
    shapes = {n: t.shape for n, t in tensors.items() if not _beside_weights(n)}
    trained = trained_parameters(bee)
    weights = {f"{WEIGHTS}/{name}": p.shape for name, p in trained.items()}
    teacher = {f"{TEACHER}/{name}": p.shape for name, p in trained.items()}
    if not weights.items() <= shapes.items() <= (weights | teacher).items():
        raise _not_whole(path)
    if known is not None and not torch.equal(known, _digest(tensors)):
        raise _not_whole(path)
    moments, taken = source_moments(bee.model), _part(tensors, STATISTICS)
    if bee.config.bursts and moments and not taken:
        raise CheckpointError(
            f"{path} was made by an earlier version, without the statistics that bursts="
            f"{bee.config.bursts:g} falls back on; make it again with `bombus warmup {bee.name}`."
        )
    if taken and {n: t.shape for n, t in taken.items()} != {n: t.shape for n, t in moments.items()}:
        raise _not_whole(path)
    try:
        bee.rehearsal.load_state_dict(_part(tensors, IMAGES) if bee.config.rehearsal_weight else {})
    except (LookupError, RuntimeError, ValueError):
        raise _not_whole(path) from None
    if bee.config.rehearsal_weight and not len(bee.rehearsal):
        without = f"{path} was made without source images to rehearse; make it again with"
        if not bee.source_optional:
            raise CheckpointError(f"{without} `bombus warmup {bee.name}`, or give source images.")
        weight = f"rehearsal_weight={bee.config.rehearsal_weight:g}"
        bee.event("nothing to rehearse", reason=f"{without} {weight}, or give source images")
    if bee.config.warmup_rounds is None:
        bee.config = replace(bee.config, warmup_rounds=header["rounds"])
    bee.source_bytes = header["source_bytes"]
    bee.source_answers = header["source_answers"]
    _fill(bee, tensors)


def _beside_weights(name: str) -> bool:
    parts = r"(student codes|teacher codes|queue)/\d+|rehearsal/(images|labels|like)|statistics/.+"
    return bool(re.fullmatch(parts, name))


def _part(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {n.partition("/")[2]: t for n, t in tensors.items() if n.startswith(f"{kind}/")}


def _fill(bee: Bee, tensors: dict[str, Tensor]) -> None:
    device = bee.parameters[0].device
    trained, books = trained_parameters(bee), bee.codebooks
    stores = {
        CODES: books.student,
        "teacher codes": books.teacher,
        "queue": books.queue,
    }
    with torch.no_grad():
        for name, p in trained.items():
            own = tensors[f"{WEIGHTS}/{name}"]
            average = tensors.get(f"{TEACHER}/{name}", own)
            # What does not adapt exists once.
            p.copy_(own if name in bee.teacher else average)
            if name in bee.teacher:
                bee.teacher[name].copy_(average)
        moments = source_moments(bee.model)
        for name, taken in _part(tensors, STATISTICS).items():
            moments[name].copy_(taken)
    for name, tensor in tensors.items():
        kind, _, key = name.partition("/")
        if kind in stores:
            stores[kind][int(key)] = tensor.to(device)
    bee.deep.changed = bool(bee.deep.parameters)


def source_answers(bee: Bee, shape: Sequence[int]) -> dict[str, Any]:
    """What the network, not yet prepared, makes of four drawn images: more than its weights say."""
    drawn = torch.rand((4, *shape), generator=torch.Generator().manual_seed(0), device="cpu")
    images = bee.input.low + (bee.input.high - bee.input.low) * drawn
    with source_statistics(bee.model):
        logits = bee.teach(images.to(bee.parameters[0])).logits
    return {"shape": list(shape), "logits": checkpoint.finite(logits.float().tolist())}


def answers_as(bee: Bee, known: Mapping[str, Any] | None) -> bool:
    """Whether the network answers as it did then, but for another precision's rounding."""
    if known is None:
        return True
    then, now = (
        torch.tensor(given["logits"], dtype=torch.float64, device="cpu").nan_to_num()
        if all(None not in row for row in given["logits"])
        else torch.zeros(1, device="cpu")
        for given in (known, source_answers(bee, known["shape"]))
    )
    if then.shape != now.shape:
        return False
    return bool((then - now).abs().max() <= ROUNDING * then.abs().max())


def trained_parameters(bee: Bee) -> dict[str, torch.nn.Parameter]:
    """What a warm-up trains: the blocks that adapt, and the others where they are prepared."""
    return {**bee.adapted, **bee.deep.parameters}


def deciding_settings(bee: Bee) -> dict[str, Any]:
    """What decides a warm-up, as JSON would give it back, with what "default" came to mean."""
    resolved = {
        "levels": bee.levels,
        "trained": sorted(trained_parameters(bee)),
        "blocks": bee.blocks,
        "input": bee.input.to_dict(),
    }
    asked = {**asdict(bee.config), **resolved}
    kept = {name: asked[name] for name in (*STRUCTURE, *PLACE, *DECISIVE)}
    if bee.config.rehearsal_weight:  # else no image is kept
        kept |= {name: asked[name] for name in ("rehearsal_images", "rehearsal_mb")}
    settings: dict[str, Any] = json.loads(json.dumps(kept))
    return settings
