"""What a batch and a replay with a full pool of anchors cost on a GPU: time, memory that stays.

    python lab/replay_memory.py [--backbone wrn-28-10] [--batch-size 200]
    python lab/replay_memory.py --backbone resnet50 --batch-size 64 --side 224 --classes 1000

The network has random weights: neither time nor memory depends on them.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from bombus.backbones import create
from bombus.methods._anchors import flatten, replay
from bombus.methods.bee import Bee

MB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backbone", default="wrn-28-10")
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    options = parser.parse_args()
    model = create(options.backbone, num_classes=options.classes)
    model = model.to("cuda", memory_format=torch.channels_last)
    bee = Bee(model, Bee.Config(replay="weighted", replay_every=10_000))
    x = torch.rand(options.batch_size, 3, options.side, options.side, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        for _ in range(3):
            bee(x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            bee(x)
        torch.cuda.synchronize()
        batch_ms = 1000 * (time.perf_counter() - start) / 5
        while len(bee.anchors) < bee.config.anchors:
            bee.anchors.store(flatten(bee.parameters))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        with torch.no_grad():
            replay(bee, bee.passes.views(x))
        torch.cuda.synchronize()
    report = {
        "backbone": options.backbone,
        "batch_size": options.batch_size,
        "side": options.side,
        "batch_ms": round(batch_ms, 1),
        "anchors": len(bee.anchors),
        "anchors_on_host": bee.anchors.on_host,
        "anchor_mb": round(bee.anchors[0].numel() * bee.anchors[0].element_size() / MB, 2),
        "left_behind_mb": round((torch.cuda.memory_allocated() - before) / MB, 2),
        "peak_mb": round(torch.cuda.max_memory_allocated() / MB),
        "replay_ms": round(1000 * (time.perf_counter() - start), 1),
        "device": torch.cuda.get_device_name(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
