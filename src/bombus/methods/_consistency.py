"""Multi-level consistency regularisation (MCR): what pulls BEE's student to its teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bombus.losses.divergence import symmetric_cross_entropy
from bombus.losses.multilevel import consistency, log_assignment, perplexity
from bombus.losses.precision import at_least_single
from bombus.methods._passes import Pass

if TYPE_CHECKING:
    from bombus.methods._bee_config import BeeConfig
    from bombus.methods.bee import Bee


def multilevel_loss(
    bee: Bee, student: Pass, teacher: Pass, *, reporting: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Eq. 9 over the summed levels, with what to report of each where that is asked for."""
    config: BeeConfig = bee.config
    count = len(bee.levels)
    weights = dict(zip(bee.levels, config.level_weights or (1.0,) * count, strict=True))
    taus = dict(zip(bee.levels, (config.tau_teacher * count)[:count], strict=True))
    loss = at_least_single(student.logits.new_zeros(()))
    report: dict[str, Tensor] = {}
    for level, descriptor in student.descriptors.items():
        weight = weights.get(level, 0.0)
        target = bee.codebooks.targets(
            level,
            teacher.descriptors[level],
            taus.get(level, config.tau_teacher[0]),
            config.sinkhorn_iterations,
        )
        codes = bee.codebooks.student[level]
        # A level without weight does not pull on the network, but its codes are learnt.
        log_p = log_assignment(
            descriptor if weight else descriptor.detach(), codes, config.tau_student
        )
        part = consistency(log_p, bee.passes.swap(target))
        if weight or codes.requires_grad:
            loss = loss + (weight or 1.0) * part
        if reporting:
            report[f"mcr_{level}"] = part.detach()
            report[f"teacher_perplexity_{level}"] = perplexity(target)
            report[f"student_perplexity_{level}"] = perplexity(log_p.detach().exp())
    if config.prediction_weight:
        agreed = bee.passes.mean(teacher.logits)
        agreed = torch.cat([agreed] * bee.passes.views_count)
        part = symmetric_cross_entropy(student.logits, agreed).mean()
        loss = loss + config.prediction_weight * part
    return loss, report
