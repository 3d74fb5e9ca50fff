"""Could any merge help? What a student would score if it went back to, or towards, earlier selves.

    python lab/replay_oracle.py --benchmark cifar10-c --weights W --data DOUBLE --source PREPARED \
        --domains A B C --cycles 3 --samples 6000 --precision bf16 --out oracle.jsonl

`bee` runs without replay and keeps anchors. Early in each visit of a domain, on the batch at hand,
candidates take the student's place in turn: the first anchor (the prepared network), the mean of
all anchors, the paper's merge, and mixtures with the student. Reported for each: the error of
student and teacher together (labels are read here and nowhere else), and what could be known
without labels: how far the answers to the image and to its mirror image disagree, and their
entropy. Then the same earlier selves as voters: their logits beside the student's and teacher's,
no parameter merged. One line a look; the last line says which candidate is best on average, and
how a choice by each signal would have done.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bombus.data.batch import Batch
from bombus.losses.divergence import symmetric_kl
from bombus.losses.entropy import softmax_entropy
from bombus.methods._anchors import (
    AnchorPool,
    flatten,
    log_probabilities,
    merge,
    merge_complementary,
    unflatten,
)
from bombus.methods.bee import Bee
from bombus.online import adapt_online, autocast
from bombus.runs import Run
from bombus.settings import RunSettings

LOOKS = (2, 5, 10)  # batches after the border
SHARES = (0.25, 0.5, 1.0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--benchmark", default="cifar10-c")
    parser.add_argument("--backbone")
    parser.add_argument("--weights", type=Path, nargs="*", default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--domains", nargs="+", required=True)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], help="NAME=VALUE of bee")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


@torch.no_grad()
def look(bee: Bee, anchors: AnchorPool, x: Tensor, y: Tensor) -> dict[str, dict[str, float]]:
    """Error, disagreement of the mirror pair and entropy, by candidate."""
    views = bee.passes.views(x)
    taught = bee.passes.mean(bee.teach(views).logits).float()
    student = flatten(bee.parameters)
    merged, chosen, _ = merge_complementary(
        student, anchors, lambda flat: log_probabilities(bee, flat, views), bee.config.complementary
    )

    def answers(flat: Tensor) -> Tensor:
        return bee.passes(views, unflatten(flat, bee.adapted)).logits.float()

    def error(logits: Tensor) -> float:
        return round(100 * (logits.argmax(1).cpu() != y).float().mean().item(), 2)

    count = len(anchors)
    mean = merge([anchors[i] for i in range(count)], torch.full((count,), 1 / count))
    goals = {"first anchor": anchors[0], "mean of anchors": mean, "the paper's merge": merged}
    candidates = {"student": student}
    for name, goal in goals.items():
        candidates |= {f"{name}, {share:g}": student.lerp(goal, share) for share in SHARES}
    result = {}
    for name, flat in candidates.items():
        logits = answers(flat)
        own = bee.passes.mean(logits)
        one, other = (half.log_softmax(1) for half in logits.chunk(2))
        result[name] = {
            "error": error(own + taught),
            "disagreement": round(symmetric_kl(one, other).item(), 5),
            "entropy": round(softmax_entropy(own).mean().item(), 5),
        }
    given = bee.passes.mean(answers(student)) + taught
    voters = {
        "the first anchor": [anchors[0]],
        "the mean of anchors": [mean],
        "the paper's merge": [merged],
        "the most different anchor": [anchors[i] for i in chosen[:1]],
        "the five most different": [anchors[i] for i in chosen],
    }
    for name, flats in voters.items():
        votes = torch.stack([bee.passes.mean(answers(flat)) for flat in flats]).sum(0)
        result[f"vote of {name}"] = {"error": error(given + votes)}
    return result


def main() -> None:
    options = parse()
    settings = RunSettings(
        method="bee",
        benchmark=options.benchmark,
        backbone=options.backbone,
        weights=tuple(options.weights),
        data=options.data,
        source=options.source,
        domains=tuple(options.domains) * options.cycles,
        samples=options.samples,
        seed=options.seed,
        precision=options.precision,
        set={**dict(pair.split("=", 1) for pair in options.set), "replay": "off"},
    )
    run = Run(settings)
    bee: Any = run._adapter()
    anchors = AnchorPool(200)
    anchors.store(flatten(bee.parameters))
    length = len(run.plan_domains) // (options.cycles * len(set(run.plan_domains)))
    current: list[Batch] = []

    def remembered() -> Iterator[Batch]:
        for batch in run.stream.batches(run.images):
            current[:] = [batch]
            yield batch

    looks: list[dict[str, dict[str, float]]] = []
    wrong = samples = 0
    with options.out.open("w") as out:
        for record in adapt_online(
            bee, remembered(), device=run.device, precision=settings.precision
        ):
            position, batch = record["batch"], current[0]
            for counts in record["domains"].values():
                wrong, samples = wrong + counts["wrong"], samples + counts["samples"]
            if position % length in LOOKS and len(anchors) > 1:
                with autocast(run.device, settings.precision):
                    seen = look(bee, anchors, batch.x.to(run.device), batch.y)
                looks.append(seen)
                line = {"batch": position, "domain": batch.domains[0], "candidates": seen}
                out.write(json.dumps(line) + "\n")
            if position and position % bee.config.anchor_period == 0:
                anchors.store(flatten(bee.parameters))
        sums: dict[str, float] = defaultdict(float)
        for seen in looks:
            for name, values in seen.items():
                sums[name] += values["error"] / len(looks)
            merges = {name: values for name, values in seen.items() if len(values) > 1}
            for signal in ("error", "disagreement", "entropy"):
                best = min(merges, key=lambda name, s=signal, t=merges: t[name][s])  # type: ignore[misc]
                sums[f"chosen by {signal}"] += seen[best]["error"] / len(looks)
        summary = {name: round(value, 3) for name, value in sums.items()}
        facts = {"stream error": round(100 * wrong / samples, 3), "looks": len(looks)}
        out.write(json.dumps({**facts, "mean error": summary, "settings": settings.to_dict()}))
        out.write("\n")
    print(facts)
    for name, value in summary.items():
        print(f"{value:7.2f}  {name}")


if __name__ == "__main__":
    main()
