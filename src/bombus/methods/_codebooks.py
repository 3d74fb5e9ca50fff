"""BEE's codebooks: per level the codes of student and teacher, and recent teacher descriptors.

Shapes: N samples, M codes, D channels of the level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bombus.losses.sinkhorn import sinkhorn

Level = int


class Codebooks:
    def __init__(self, queue_size: int) -> None:
        self.queue_size = queue_size
        self.student: dict[Level, Tensor] = {}  # (M, D), unit rows
        self.teacher: dict[Level, Tensor] = {}
        self.queue: dict[Level, Tensor] = {}  # (up to queue_size, D), newest first

    def __bool__(self) -> bool:
        return bool(self.student)

    def start(self, level: Level, codes: Tensor) -> None:
        """Student and teacher begin alike: a slow teacher keeps most of its first codes."""
        self.student[level] = F.normalize(codes, dim=1)
        self.teacher[level] = self.student[level].clone()

    def targets(self, level: Level, descriptor: Tensor, tau: float, iterations: int) -> Tensor:
        """The teacher's balanced assignments (Eq. 8), (N, M), over the batch and the queue."""
        queue = self.queue.get(level, descriptor[:0])
        scores = torch.cat([descriptor, queue]) @ self.teacher[level].T
        return sinkhorn(scores, tau, iterations)[: len(descriptor)]

    def remember(self, descriptors: Mapping[Level, Tensor], count: int) -> None:
        """The first `count` of the teacher's descriptors enter the queues."""
        for level, descriptor in descriptors.items():
            queue = self.queue.get(level, descriptor[:0])
            newest = torch.cat([descriptor[:count], queue])
            self.queue[level] = newest[: self.queue_size].detach()

    def follow(self, momentum: float) -> None:
        """The teacher's codes move towards the student's, and back onto the sphere."""
        for level, codes in self.student.items():
            moved = torch.lerp(self.teacher[level], codes.detach(), 1 - momentum)
            self.teacher[level] = F.normalize(moved, dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {"student": self.student, "teacher": self.teacher, "queue": self.queue}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.student = dict(state["student"])
        self.teacher = dict(state["teacher"])
        self.queue = dict(state["queue"])


def usable(descriptors: Tensor) -> Tensor:
    """Those that are finite: a code that is not would make every target NaN, for good."""
    return descriptors[descriptors.isfinite().all(1)]


def draw_codes(descriptors: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Codes drawn from descriptors; where those are too few, again, a little aside (M, D)."""
    order = torch.randperm(len(descriptors), generator=generator, device=generator.device)
    repeats = -(-count // len(descriptors))
    codes = descriptors[order.repeat(repeats)[:count].to(descriptors.device)].clone()
    if repeats > 1:
        aside = torch.randn(codes.shape, generator=generator, device=generator.device).to(codes)
        scale = 0.1 / codes.shape[1] ** 0.5
        codes[len(descriptors) :] += scale * aside[len(descriptors) :]
    return codes


def random_codes(count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Codes drawn from the sphere: blind to the data, as the paper leaves it open."""
    size = (count, like.shape[1])
    return torch.randn(size, generator=generator, device=generator.device).to(like)
