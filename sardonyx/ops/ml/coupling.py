"""Class probabilities from the decisions between each two classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.ops.framework.operator import Array
from sardonyx.ops.ml.scores import logistic


def pairwise(decisions: Array, slopes: Array, offsets: Array, pairs: Sequence[tuple[int, int]], classes: int) -> Array:
    """Probability of class i against class j, (rows, i, j), from decision values (rows, pairs), by Platt's sigmoid."""
    result = np.zeros((len(decisions), classes, classes), np.float32)
    for place, (first, second) in enumerate(pairs):
        chance = 1 - logistic(decisions[:, place] * slopes[place] + offsets[place])
        chance = np.clip(chance, np.float32(1e-7), np.float32(1) - np.float32(1e-7))
        result[:, first, second] = chance
        result[:, second, first] = 1 - chance
    return result


def coupled(chances: Array) -> Array:
    """Class probabilities (rows, classes) that agree best with the pairwise ones (rows, classes, classes).

    The second method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling"
    (JMLR 5, 2004): p minimises the sum over i, j of (r_ji p_i - r_ij p_j)², that is pᵀQp with sum(p) = 1, found by
    their iteration over single classes. Tolerance and number of rounds are those of libsvm, and each row stops by
    itself, since where it stops is part of the result.
    """
    rows, classes = chances.shape[:2]
    quadratic = -np.swapaxes(chances, 1, 2) * chances
    each = np.arange(classes)
    quadratic[:, each, each] = np.square(chances).sum(axis=1)
    result = np.full((rows, classes), 1 / classes, np.float32)
    active = np.arange(rows)
    for _ in range(max(100, classes)):
        q, p = quadratic[active], result[active]
        gradient = np.einsum("rij,rj->ri", q, p)
        level = (p * gradient).sum(axis=1)
        going = np.abs(gradient - level[:, None]).max(axis=1, initial=0) >= np.float32(0.005 / classes)
        active, q, p, gradient, level = active[going], q[going], p[going], gradient[going], level[going]
        if not len(active):
            break
        for place in range(classes):
            own = q[:, place, place]
            step = (level - gradient[:, place]) / own
            p[:, place] += step
            level = (level + step * (step * own + 2 * gradient[:, place])) / np.square(1 + step)
            gradient = (gradient + step[:, None] * q[:, place]) / (1 + step)[:, None]
            p /= (1 + step)[:, None]
        result[active] = p
    return result
