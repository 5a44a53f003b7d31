"""GPTQ: rounding column by column, with what is lost made up for by the columns that follow.

Source: E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (ICLR
2023). The error of a product x W is a quadratic form of the error of W, its matrix the second moment of x. When one
input's weights are rounded, those of the inputs not yet rounded move so that the form is least: how far tells the
inverse of the moment, of which the Cholesky factor alone is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sardonyx.api.building.block_rounding import largest_at_the_end, whole_range
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.weight_only.blocks import Array, Form, Rounded

# Rows of weights that are worked on together: their inputs are visited one after the other.
AT_ONCE = 1 << 25
# Shrunken ranges that are tried, and the power of an error that is summed (with `mse`), as in the authors' code.
_SHRINKS, _LEAST_RANGE, _POWER = 100, 0.2, 2.4
_MOST_DAMPING = 1e6


@dataclass(frozen=True)
class Gptq:
    """The method for one weight, whose inputs have the second moment `moment`, [K, K].

    `damping` times the mean of its diagonal is added to the diagonal. `by_activity` visits inputs by their activity,
    the most active first; blocks have the parameters of the weights as they were then, and otherwise those of the
    weights as they are when the first input of a block is reached. `searched` tries smaller ranges for the least
    error. Without `per_channel` all rows of weights share the parameters of a block. `lazy` inputs are visited before
    what they cost is passed on to all that follow.
    """

    moment: Array
    damping: float = 0.01
    by_activity: bool = False
    searched: bool = False
    per_channel: bool = True
    lazy: int = 128

    def __call__(self, groups: Array, mask: Array | None, form: Form) -> Rounded:
        rows, blocks, block = groups.shape
        size = len(self.moment)
        order, factor = self._factor()
        weights = np.ascontiguousarray(groups.reshape(rows, -1)[:, :size].T)  # [inputs, rows]
        weights = weights[order]
        codes = np.zeros((blocks * block, rows), np.uint8)
        scales, zeros = np.empty((blocks, rows), np.float32), np.empty((blocks, rows), np.float32)
        known = self.by_activity
        if known:
            for index in range(blocks):
                scales[index], zeros[index] = self._parameters(groups[:, index], form)
        step = block * max(1, self.lazy // block) if not known and block < size else self.lazy
        for start in range(0, size, step):
            end = min(start + step, size)
            errors = np.empty((end - start, rows), np.float32)
            for place in range(start, end):
                index = int(order[place])
                of_block = index // block
                if not known and index % block == 0:
                    ahead = self._ahead(weights, errors, factor, start, place, min(place + block, size), end)
                    scales[of_block], zeros[of_block] = self._parameters(ahead, form)
                scale, zero = scales[of_block], zeros[of_block]
                code = np.clip(np.rint(weights[place] / scale + zero), 0, form.top)
                codes[index] = code
                errors[place - start] = (weights[place] - (code - zero) * scale) / factor[place, place]
                # Only what is visited next has to be up to date; the rest follows in one product.
                weights[place + 1 : end] -= np.outer(factor[place, place + 1 : end], errors[place - start])
            weights[end:] -= factor[start:end, end:].T @ errors
        return Rounded(
            np.ascontiguousarray(codes.T).reshape(rows, blocks, block),
            np.ascontiguousarray(scales.T),
            np.ascontiguousarray(zeros.T).astype(np.uint8),
        )

    def _factor(self) -> tuple[Array, Array]:
        """The order in which inputs are visited, and the upper Cholesky factor of the inverse moment in it."""
        moment = np.array(self.moment, np.float64)
        diagonal = np.diagonal(moment).copy()
        mean = float(diagonal.mean()) or 1.0
        silent = diagonal == 0  # inputs that are never active: nothing follows from them
        moment[silent, silent] = mean
        size = len(moment)
        order = np.argsort(-diagonal, kind="stable") if self.by_activity else np.arange(size)
        moment = moment[np.ix_(order, order)]
        damping = max(self.damping, 0.0)
        while True:
            try:
                damped = moment + damping * mean * np.eye(size)
                inverse = np.linalg.inv(damped)
                factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
                if np.isfinite(factor).all():
                    return order, np.ascontiguousarray(factor, np.float32)
            except np.linalg.LinAlgError:
                pass
            damping = max(damping * 10, 1e-4)  # fewer samples than inputs, or such that depend on each other
            if damping > _MOST_DAMPING:
                raise InvalidQuantization(
                    "The calibration data give no second moment that can be inverted: they hold NaN, infinite or far "
                    "too large numbers"
                )

    def _ahead(
        self, weights: Array, errors: Array, factor: Array, start: int, place: int, until: int, end: int
    ) -> Array:
        """The weights of a block as they are now, [rows, block]; those beyond `end` are late."""
        if until <= end:
            return weights[place:until].T
        late = weights[end:until] - factor[start:place, end:until].T @ errors[: place - start]
        return np.concatenate([weights[place:end], late]).T

    def _parameters(self, rows: Array, form: Form) -> tuple[Array, Array]:
        """The scale and zero point of one block of each row, [rows, block]."""
        groups = rows if self.per_channel else rows.reshape(1, -1)
        ends = np.stack([groups.min(axis=1), groups.max(axis=1)], axis=1)[:, None]
        if form.symmetric:
            signed = np.where(np.abs(ends[..., :1]) > np.abs(ends[..., 1:]), ends[..., :1], ends[..., 1:])
            ends = np.concatenate([signed, signed], axis=2)
        best = self._of_ends(ends, form)
        if self.searched:
            least = self._error(groups, best, form)
            for index in range(1, int(_SHRINKS * (1 - _LEAST_RANGE))):
                tried = self._of_ends(ends * np.float32(1 - index / _SHRINKS), form)
                error = self._error(groups, tried, form)
                better = error < least
                least = np.where(better, error, least)
                best = np.where(better, tried[0], best[0]), np.where(better, tried[1], best[1])
        return best

    @staticmethod
    def _of_ends(ends: Array, form: Form) -> tuple[Array, Array]:
        scales, zeros = (largest_at_the_end if form.symmetric else whole_range)(ends, form.bits)
        stored = form.stored(scales[:, 0])
        return np.where(stored == 0, np.float32(1), stored), zeros[:, 0].astype(np.float32)

    @staticmethod
    def _error(groups: Array, parameters: tuple[Array, Array], form: Form) -> Array:
        scale, zero = (each[:, None] for each in parameters)
        codes = np.clip(np.rint(groups / scale + zero), 0, form.top)
        error: Array = np.power(np.abs((codes - zero) * scale - groups), np.float32(_POWER)).sum(axis=1)
        return error
