"""Random numbers: RandomNormal, RandomUniform and their Like forms, Bernoulli, Multinomial, Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel import expr as k
from sardonyx.kernel.program import Arrangement, Host, Kernel, View
from sardonyx.ops.framework.facts import UNKNOWN, Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.row_kernels import Contents, Shapes, given, is_computable, leaves, rows_template
from sardonyx.runtime.random_state import stream_of


class Drawing(Operator):
    """An operator with a stream of random numbers of its own."""

    host_reason = "random numbers are drawn in one stream for each node"
    seed: float | None = None

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        self.stream = stream_of(node.name or node.outputs[0].name or node.op_type, self.seed)

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return True


class Normal(Drawing):
    """Numbers of a normal distribution."""

    mean: float = 0.0
    scale: float = 1.0

    def draw(self, shape: tuple[int, ...]) -> Array:
        return np.asarray(self.stream.normal(shape) * self.scale + self.mean)


class Uniform(Drawing):
    """Numbers of a uniform distribution over [low, high)."""

    low: float = 0.0
    high: float = 1.0

    def draw(self, shape: tuple[int, ...]) -> Array:
        return np.asarray(self.stream.uniform(shape) * (self.high - self.low) + self.low)


class OfShape(Drawing):
    """The shape is an attribute."""

    shape: tuple[int, ...]
    dtype: int = 1

    def draw(self, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError

    def run(self, *inputs: Value) -> Sequence[Value]:
        return (self.draw(self.shape).astype(numpy_dtype(ir.DataType(self.dtype))),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType(self.dtype), self.shape)]


class LikeInput(Drawing):
    """The shape is the input's, and so is the type unless `dtype` says otherwise."""

    dtype: int | None = None

    def draw(self, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError

    def run(self, like: Array) -> Sequence[Value]:
        kind = like.dtype if self.dtype is None else numpy_dtype(ir.DataType(self.dtype))
        return (self.draw(like.shape).astype(kind),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        like = inputs[0] or UNKNOWN
        return [Fact(like.type if self.dtype is None else ir.TensorType(ir.DataType(self.dtype)), like.shape)]


@operator("RandomNormal")
class RandomNormal(Normal, OfShape):
    """Normal numbers of a given shape."""


@operator("RandomNormalLike")
class RandomNormalLike(Normal, LikeInput):
    """Normal numbers of the input's shape."""


@operator("RandomUniform")
class RandomUniform(Uniform, OfShape):
    """Uniform numbers of a given shape."""


@operator("RandomUniformLike")
class RandomUniformLike(Uniform, LikeInput):
    """Uniform numbers of the input's shape."""


@operator("Bernoulli", since=15)
class Bernoulli(LikeInput):
    """1 with the probability that the input holds, else 0."""

    def run(self, probability: Array) -> Sequence[Value]:
        wide = probability.astype(np.float64)
        if wide.size and not ((wide >= 0) & (wide <= 1)).all():
            raise ValueError("the probabilities of Bernoulli must lie in [0, 1]")
        kind = probability.dtype if self.dtype is None else numpy_dtype(ir.DataType(self.dtype))
        return ((self.stream.uniform(probability.shape) < wide).astype(kind),)


@operator("Multinomial", since=7)
class Multinomial(Drawing):
    """`sample_size` classes for each row of unnormalised log probabilities."""

    dtype: int = 6
    sample_size: int = 1

    def run(self, logits: Array) -> Sequence[Value]:
        if logits.ndim != 2:
            raise ValueError(f"Multinomial needs a matrix (batch, classes), not {logits.ndim} dimensions")
        wide = logits.astype(np.float64)
        weights = np.exp(wide - wide.max(axis=1, keepdims=True))
        limits = np.cumsum(weights, axis=1)
        points = self.stream.uniform((logits.shape[0], self.sample_size)) * limits[:, -1:]
        rows = [np.searchsorted(limit, point, side="right") for limit, point in zip(limits, points, strict=True)]
        chosen = np.array(rows, np.int64).reshape(points.shape)
        return (np.minimum(chosen, logits.shape[1] - 1).astype(numpy_dtype(ir.DataType(self.dtype))),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        logits = inputs[0] or UNKNOWN
        kind = ir.DataType(self.dtype)
        return [tensor(kind, None if logits.shape is None else (logits.shape[0], self.sample_size))]


def may_be_true(inputs: Sequence[Fact | None], place: int) -> bool:
    """Whether an optional truth value, false where it is absent, may be true in a run."""
    given = inputs[place] if place < len(inputs) else None
    if given is None:
        return False
    values = given.integers()
    return values is None or any(values)


class Dropping(Drawing):
    """What all forms of Dropout share."""

    host_reason = "its mask is drawn from the node's random numbers"

    def dropped(self, data: Array, ratio: float) -> tuple[Array, Array]:
        """Elements set to 0 with probability `ratio`, the others scaled up; the mask of those kept."""
        if not 0 <= ratio < 1:
            raise ValueError(f"the ratio of Dropout must lie in [0, 1), not {ratio}")
        if ratio == 0:
            return data, np.ones(data.shape, np.bool_)
        mask = self.stream.uniform(data.shape) >= ratio
        scale = np.asarray(1.0 / (1.0 - ratio)).astype(data.dtype)
        return np.asarray(np.where(mask, data * scale, np.zeros((), data.dtype))), mask

    def mask_type(self, data: Fact) -> Any:
        return ir.TensorType(ir.DataType.BOOL) if self.version >= 10 else data.type

    def mask(self, kept: Array, data: Array) -> Array:
        return kept if self.version >= 10 else kept.astype(data.dtype)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        return [Fact(data.type, data.shape), Fact(self.mask_type(data), data.shape)]

    def lower_whole(self, data: np.dtype[Any] | None) -> Kernel:
        """The kernel of `kept_whole`."""
        if not self.has_output(1):
            return View(_first)
        (x,) = leaves([data])
        if x is None or data is None or not is_computable(data):
            return Host(self.run, f"nothing is computed with {data}")
        kept = k.logical_or(x.equals(x), k.isnan(x))  # true, in the shape of x
        outputs = [x.cast(data), kept if self.version >= 10 else kept.cast(data)]
        return rows_template([data], outputs, _as_they_are, self.run)

    def kept_whole(self, data: Array) -> Sequence[Value]:
        """The outputs where nothing is dropped."""
        return (data, self.mask(np.ones(data.shape, np.bool_), data)) if self.has_output(1) else (data,)


def _first(data: Array, *ratio: Array) -> Array:
    return data


def _as_they_are(shapes: Shapes, contents: Contents) -> Arrangement:
    shape = given(shapes[0])
    return Arrangement((shape,), (), (shape, shape))


@operator("Dropout")
class OldDropout(Dropping):
    """Dropout before opset 7: it drops unless `is_test` is set."""

    ratio: float = 0.5
    is_test: int = 0

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return not self.is_test

    def run(self, data: Array) -> Sequence[Value]:
        if self.is_test:
            return self.kept_whole(data)
        result, kept = self.dropped(data, self.ratio)
        return result, self.mask(kept, data)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_whole(inputs[0]) if self.is_test else Host(self.run, self.host_reason)


@operator("Dropout", since=7)
class InferenceDropout(Dropping):
    """Dropout of opsets 7 to 11: the input itself."""

    ratio: float = 0.5

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return False

    def run(self, data: Array) -> Sequence[Value]:
        return self.kept_whole(data)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_whole(inputs[0])


@operator("Dropout", since=12)
class Dropout(Dropping):
    """Drops where the input `training_mode` is true; without that input it is the input itself."""

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return may_be_true(inputs, 2)

    def run(self, data: Array, ratio: Array | None = None, training_mode: Array | None = None) -> Sequence[Value]:
        if training_mode is None or not bool(training_mode.reshape(())):
            return self.kept_whole(data)
        return self.dropped(data, 0.5 if ratio is None else float(ratio.reshape(())))

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        training = len(inputs) > 2 and inputs[2] is not None
        return Host(self.run, self.host_reason) if training else self.lower_whole(inputs[0])
