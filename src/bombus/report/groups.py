"""Which runs belong together: the seeds of one experiment, and experiments that can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bombus.errors import BombusError
from bombus.report.records import RunResult

# Where more settings than these set a method's rows apart, a row names those that are not the
# method's own.
MANY = 3


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    method: str
    difference: str  # what sets it apart from the method's other groups, "" if it has none
    runs: tuple[RunResult, ...]

    @property
    def name(self) -> str:
        return f"{self.method} ({self.difference})" if self.difference else self.method

    @property
    def label(self) -> str:
        """With the number of seeds, where there are several."""
        seeds = f"{len(self.runs)} seeds" if len(self.runs) > 1 else ""
        inside = "; ".join(part for part in (self.difference, seeds) if part)
        return f"{self.method} ({inside})" if inside else self.method

    def name_of(self, run: RunResult) -> str:
        """Of one of its runs."""
        return f"{self.name}, seed {run.seed}"


def shared_seeds(groups: Sequence[Group]) -> int | None:
    """How many seeds each of several groups has, where that is the same: it is said once then."""
    counts = {len(group.runs) for group in groups}
    return counts.pop() if len(groups) > 1 and len(counts) == 1 else None


def labels_of(groups: Sequence[Group]) -> list[str]:
    return [g.label if shared_seeds(groups) is None else g.name for g in groups]


def split_by_task(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Runs whose errors can stand in the same columns: same images, network, severity, stream."""
    tasks: dict[Any, list[RunResult]] = {}
    for run in runs:
        names = tuple(d.name for d in run.domains)
        task = (run.benchmark, run.backbone, severity_of(run), stream_label(run), names)
        tasks.setdefault(task, []).append(run)
    return list(tasks.values())


def severity_of(run: RunResult) -> int | None:
    """None where the images have no severities, whatever was asked for."""
    if isinstance(run.data.get("severities"), str):
        return None
    severity: int | None = run.stream.get("severity")
    return severity


def severity_in_words(run: RunResult) -> str:
    severity = severity_of(run)
    if severity is None:
        return ""
    climbs = run.stream.get("kind") == "gradual" and severity > 1
    return f"severity 1 to {severity}" if climbs else f"severity {severity}"


def stream_label(run: RunResult) -> str:
    """The kind of stream with its own options ("recurring, visits 20"); "" for the usual one."""
    kind = run.stream.get("kind", "continual")
    common = ("kind", "domains", "severity", "batch_size", "samples", "seed", "shuffle")
    options = {k: v for k, v in run.stream.items() if k not in common and v is not None}
    parts = [kind, *(f"{name} {_text(value)}" for name, value in options.items())]
    return "" if kind == "continual" else ", ".join(parts)


def group_runs(runs: Sequence[RunResult]) -> list[Group]:
    """Seeds together, methods in the order in which they first come, their variants adjacent."""
    members: dict[str, list[RunResult]] = {}
    facts_of: dict[str, dict[str, Any]] = {}
    young = {method: _young(runs, method) for method in {run.method for run in runs}}
    for run in runs:
        known = {k: v for k, v in _facts(run).items() if k not in young[run.method]}
        facts = {**known, "repeat": 1}
        while True:
            key = json.dumps([run.method, facts], sort_keys=True)
            twins = [r for r in members.setdefault(key, []) if r.seed == run.seed]
            if not twins:
                members[key].append(run)
                facts_of[key] = facts
                break
            if twins[0].domains == run.domains:
                break  # the same run once more, e.g. its copy in a ledger
            # Same settings, same seed, other errors: another machine. Not a seed to average over.
            facts["repeat"] += 1
    groups = []
    for method in dict.fromkeys(run.method for run in runs):
        own = {key: facts_of[key] for key in members if members[key][0].method == method}
        raw = {key for key in own if _is_unnormalised(members[key][0])}
        for alike in (own.keys() - raw, raw):
            some = {key: facts for key, facts in own.items() if key in alike}
            names = dict.fromkeys(name for facts in some.values() for name in facts)
            differing = [n for n in names if len({_text(f.get(n)) for f in some.values()}) > 1]
            usual = _usual(members[next(iter(some))][0]) if len(differing) > MANY else {}
            for key, facts in some.items():
                texts = {n: _text(facts.get(n)) for n in differing}
                parts = [f"{n}={text}" for n, text in texts.items() if usual.get(n) != text]
                parts = ["un-normalised input", *parts] if key in raw else parts
                groups.append(Group(method, ", ".join(parts), tuple(members[key])))
    return groups


def _usual(run: RunResult) -> dict[str, str]:
    """What the method's settings are by themselves there; of one that is unknown here, nothing."""
    from bombus.methods import find_method
    from bombus.settings import RunSettings, make_config

    try:
        asked = RunSettings(method=run.method, benchmark=run.benchmark, backbone=run.backbone)
        config = make_config(find_method(run.method), asked)
    except BombusError:
        return {}
    return {name: _text(value) for name, value in asdict(config).items()}


def _young(runs: Sequence[RunResult], method: str) -> set[str]:
    """Settings that some runs of the method do not know yet, and all that know them agree on.

    They set nobody apart. Where those that know one differ, nobody can say which of them an older
    run is like.
    """
    configs = [run.config for run in runs if run.method == method]
    names = {name for config in configs for name in config}
    return {
        name
        for name in names
        if any(name not in config for config in configs)
        and len({_text(config[name]) for config in configs if name in config}) == 1
    }


def _is_unnormalised(run: RunResult) -> bool:
    """As the published tables of ViTs fed them, by mistake: never to be taken for a usual run."""
    return run.backbone.startswith("vit") and run.input.get("mean", ()) is None


def _facts(run: RunResult) -> dict[str, Any]:
    """All that decides a result except the seed, and except what split_by_task looks at."""
    config = {k: v for k, v in run.config.items() if k != "seed"}
    hidden = ("seed", "domains", "severity", "samples")
    stream = {k: v for k, v in run.stream.items() if k not in hidden}
    # As counted, not as asked for: "all" and "10000" are the same on CIFAR10-C.
    counts = {d.samples for d in run.domains}
    stream["samples"] = counts.pop() if len(counts) == 1 else [d.samples for d in run.domains]
    return {
        **config,
        **{f"stream {k}" if k in config else k: v for k, v in stream.items()},
        "weights": run.weights_sha256[:8],
        "precision": run.precision,
        "source": run.source_access,
        **{f"input {k}": v for k, v in run.input.items()},
        # A folder's name says where the images are, not which.
        **{f"data {k}": v for k, v in run.data.items() if k != "folder"},
    }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    # Lists of fingerprints and the like: enough to see that they differ.
    return text if len(text) <= 24 else hashlib.sha256(text.encode()).hexdigest()[:8]


def differing(runs: Sequence[RunResult]) -> str:
    """A caution where runs of one table do not answer the same question; else nothing."""
    facts: dict[str, list[Any]] = {
        "weights": [run.weights_sha256 for run in runs],
        "number of images": [[d.samples for d in run.domains] for run in runs],
        "batch size": [run.stream.get("batch_size") for run in runs],
        "precision": [run.precision for run in runs],
        # A folder's name says where the images are, not which.
        "images": [{k: v for k, v in run.data.items() if k != "folder"} for run in runs],
        "input": [run.input for run in runs],
    }
    names = [
        name
        for name, values in facts.items()
        if len({json.dumps(v, sort_keys=True) for v in values}) > 1
    ]
    return f"The runs differ in their {listed(names)}: compare with care." if names else ""


def listed(words: Iterable[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last
