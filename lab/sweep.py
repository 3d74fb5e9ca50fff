"""Many settings of one method on one stream, one table: how constants are chosen.

    python lab/sweep.py lab/variants/first.json --benchmark cifar10-c --weights W --data C10C \
        --source CIFAR10 --domains extra --samples 2000 --cycles 2 --precision bf16

VARIANTS is a JSON object: name -> settings of the method, as in `--set` ("source": another source,
such as a warm-up file, "method": another method, for this variant alone). Each line of --out is one
variant's result with everything needed to run it again. Several processes share the work with
--part 0/3, 1/3, 2/3. Settings are chosen on the extra corruptions, never on the 15 test domains.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from bombus.data.corruptions import EXTRA, STANDARD
from bombus.online import adapt_online
from bombus.runs import Run
from bombus.settings import RunSettings


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("variants", type=Path)
    parser.add_argument("--method", default="bee")
    parser.add_argument("--benchmark", default="demo")
    parser.add_argument("--backbone")
    parser.add_argument("--weights", type=Path, nargs="*", default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--domains", nargs="+", default=["extra"], help="names, extra, standard")
    parser.add_argument("--cycles", type=int, default=1)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--common", nargs="*", default=[], help="NAME=VALUE for every variant")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after this")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def measure(settings: RunSettings, cycles: int, images: Any) -> tuple[dict[str, Any], Any]:
    """Errors per visit of a domain, so that a domain that comes again can be told apart."""
    run = Run(settings, images=images)
    start = time.perf_counter()
    adapter = run._adapter()
    ready = time.perf_counter()
    per_visit: list[list[int]] = []
    length = len(run.plan_domains) // (cycles * len(set(run.plan_domains)))
    events: list[dict[str, Any]] = []
    last: dict[str, float] = {}
    losses: list[float] = []  # to judge triggers with
    batches = run.stream.batches(run.images)
    for record in adapt_online(adapter, batches, device=run.device, precision=settings.precision):
        if record["batch"] % length == 0:
            per_visit.append([0, 0])
        for counts in record["domains"].values():
            per_visit[-1][0] += counts["wrong"]
            per_visit[-1][1] += counts["samples"]
        events += [{"batch": record["batch"], **event} for event in record["events"]]
        last = record["signals"]
        losses.append(round(last.get("mcr", 0.0), 3))
    errors = [round(100 * wrong / samples, 2) for wrong, samples in per_visit]
    result = {
        "mean": round(sum(errors) / len(errors), 3),
        "errors": errors,
        "prepare_s": round(ready - start, 1),
        "run_s": round(time.perf_counter() - ready, 1),
        "replays": [e["batch"] for e in events if e["event"] == "replay"],
        "losses": losses,
        "last_signals": {k: round(v, 3) for k, v in last.items()},
    }
    return result, run.images


def main() -> None:
    options = parse()
    variants: dict[str, dict[str, Any]] = json.loads(options.variants.read_text())
    part, parts = map(int, options.part.split("/"))
    groups = {"extra": EXTRA, "standard": STANDARD}
    named = [name for given in options.domains for name in groups.get(given, (given,))]
    domains = tuple(named) * options.cycles
    common = dict(pair.split("=", 1) for pair in options.common)
    begun, images = time.perf_counter(), None
    for name, chosen in list(variants.items())[part::parts]:
        if time.perf_counter() - begun > options.seconds:
            print(f"# no time left for {name}", flush=True)
            continue
        chosen = dict(chosen)
        settings = RunSettings(
            method=chosen.pop("method", options.method),
            benchmark=options.benchmark,
            backbone=options.backbone,
            weights=tuple(options.weights),
            data=options.data,
            source=Path(chosen.pop("source")) if "source" in chosen else options.source,
            domains=domains,
            samples=options.samples,
            batch_size=options.batch_size,
            seed=options.seed,
            precision=options.precision,
            set={**common, **{key: _as_text(value) for key, value in chosen.items()}},
        )
        result, images = measure(settings, options.cycles, images)
        facts = {k: v for k, v in result.items() if k not in ("mean", "errors", "losses")}
        print(f"{result['mean']:6.2f}  {name:<32} {result['errors']} {facts}", flush=True)
        if options.out:
            line = {"name": name, "settings": settings.to_dict(), **result}
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    main()
