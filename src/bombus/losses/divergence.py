"""How far predictions are apart, in nats, in float32 at least.

Shapes: N samples, C classes, K models.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bombus.losses.precision import at_least_single


def symmetric_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """½ [KL(p‖q) + KL(q‖p)], the mean over the batch of (N, C) log-probabilities (BEE's Eq. 10).

    The paper prints KL(p‖q) twice; it calls the measure symmetric, so one of them is KL(q‖p). The
    mean, not the sum: Eq. 12 exponentiates it, and a batch's sum would leave one model all weight.
    """
    log_p, log_q = at_least_single(log_p), at_least_single(log_q)
    # Both directions in one sum. The factors share their sign, so rounding keeps it >= 0.
    return 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(1).mean()


def pairwise_symmetric_kl(log_ps: Sequence[Tensor]) -> Tensor:
    """The (K, K) matrix of `symmetric_kl` among K models' predictions of one batch."""
    count = len(log_ps)
    first = at_least_single(log_ps[0])
    matrix = first.new_zeros(count, count)  # a model is no distance from itself: the diagonal
    for i in range(count):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = symmetric_kl(log_ps[i], log_ps[j])
    return matrix


def symmetric_cross_entropy(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """½ H(teacher, student) + ½ H(student, teacher), one number a sample, (N,).

    As in RMT (Döbler et al., CVPR 2023). No gradient enters the teacher.
    """
    return mutual_cross_entropy(student_logits, teacher_logits.detach())


def mutual_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """½ H(one, other) + ½ H(other, one) of (N, C) logits, (N,); both sides learn."""
    log_p = at_least_single(one).log_softmax(1)
    log_q = at_least_single(other).log_softmax(1)
    return -0.5 * (log_p.exp() * log_q + log_q.exp() * log_p).sum(1)
