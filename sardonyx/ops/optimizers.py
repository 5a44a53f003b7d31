"""Optimizers of ai.onnx.preview.training: Momentum, Adagrad, Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np

from sardonyx.kernel import expr as k
from sardonyx.kernel.evaluate import evaluate, working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Host, Kernel, Pointwise, Template
from sardonyx.ops.framework.facts import UNKNOWN, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.row_kernels import is_computable, leaves

_DOMAIN = "ai.onnx.preview.training"


def _single(number: float) -> float:
    """A default as the attribute, a float32, has it."""
    return float(np.float32(number))


class Optimizer(Operator):
    """One step of every tensor X, from R, T and all X, then all G, then all of each kind of state.

    Outputs are all X, then the states in the same order, each of the type of its input.
    """

    states: ClassVar[int] = 1

    def scalars(self, rate: Expr, count: Expr) -> Sequence[Expr]:
        """Numbers that serve all tensors, in float64, from R and from the number T of earlier steps."""
        raise NotImplementedError

    def step(self, scalars: Sequence[Expr], x: Expr, gradient: Expr, *states: Expr) -> Sequence[Expr]:
        """X and the states after the step, in the dtype of X."""
        raise NotImplementedError

    @property
    def inputs_each(self) -> int:
        """X, G and the states."""
        return 2 + self.states

    def prelude(self, rate: np.dtype[Any], count: np.dtype[Any], x: np.dtype[Any]) -> Pointwise:
        """`scalars` over the inputs R and T, as tensors of the dtype `x` are computed."""
        wide = np.dtype(np.float64)
        scalars = self.scalars(Input(rate, 0).cast(wide), Input(count, 1).cast(wide))
        return Pointwise((rate, count), tuple(one.cast(working_dtype(x)) for one in scalars))

    def stepped(self, prelude: Pointwise, dtypes: Sequence[np.dtype[Any]]) -> Pointwise:
        """`step` over the results of the prelude and then the inputs of one tensor, of these dtypes."""
        operands = (*(one.dtype for one in prelude.outputs), *dtypes)
        found = [cast(Expr, leaf) for leaf in leaves(operands)]
        scalars, (x, *others) = found[: len(prelude.outputs)], found[len(prelude.outputs) :]
        results = self.step(scalars, x, *(one.cast(x.dtype) for one in others))
        outputs = (result.cast(dtype) for result, dtype in zip(results, (dtypes[0], *dtypes[2:]), strict=True))
        return Pointwise(operands, tuple(outputs))

    def tensors(self, count: int) -> int:
        """How many tensors there are, given the number of inputs behind R and T; ValueError where some are missing."""
        if not count or count % self.inputs_each:
            raise ValueError(
                f"after R and T there must be {self.inputs_each} inputs for each tensor (X, G and state), not {count}"
            )
        return count // self.inputs_each

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        each = self.tensors(len(inputs) - 2)
        known = [fact or UNKNOWN for fact in inputs[2:]]
        return [Fact(fact.type, fact.shape) for fact in (*known[:each], *known[2 * each :])]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if not all(is_computable(dtype) for dtype in inputs):
            return Host(self.run, "an input is absent or holds no numbers")
        parameters = {"prelude": self.prelude, "stepped": self.stepped, "tensors": self.tensors}
        return Template("optimizer", parameters, self.run)

    def run(self, rate: Array, count: Array, *tensors: Array) -> Sequence[Value]:
        each = self.tensors(len(tensors))
        check_scalars(rate.shape, count.shape)
        results = []
        for number in range(each):
            given = tensors[number::each]
            check_tensor([one.shape for one in given])
            prelude = self.prelude(rate.dtype, count.dtype, given[0].dtype)
            scalars = evaluate(prelude, [rate.reshape(()), count.reshape(())])
            results.append(evaluate(self.stepped(prelude, [one.dtype for one in given]), [*scalars, *given]))
        return tuple(result[place] for place in range(1 + self.states) for result in results)


def check_scalars(rate: tuple[int, ...], count: tuple[int, ...]) -> None:
    """ValueError unless R and T have one element each."""
    if any(dim != 1 for shape in (rate, count) for dim in shape):
        raise ValueError(f"R and T must have one element each, not the shapes {rate} and {count}")


def check_tensor(shapes: Sequence[tuple[int, ...]]) -> None:
    """ValueError unless a tensor, its gradient and its states have one shape."""
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"a tensor, its gradient and its states must have one shape, not {list(shapes)}")


@operator("Momentum", domain=_DOMAIN)
class Momentum(Optimizer):
    """Stochastic gradient descent with momentum V; the gradient takes part in full in the first step."""

    alpha: float
    beta: float
    mode: str
    norm_coefficient: float

    def scalars(self, rate: Expr, count: Expr) -> Sequence[Expr]:
        if self.mode not in ("standard", "nesterov"):
            raise ValueError(f"mode must be 'standard' or 'nesterov', not '{self.mode}'")
        return rate, k.where(count > 0, k.constant(self.beta, count.dtype), 1)

    def step(self, scalars: Sequence[Expr], x: Expr, gradient: Expr, *states: Expr) -> Sequence[Expr]:
        (rate, share), (momentum,) = scalars, states
        gradient = self.norm_coefficient * x + gradient
        momentum = self.alpha * momentum + share * gradient
        direction = gradient + self.alpha * momentum if self.mode == "nesterov" else momentum
        return x - rate * direction, momentum


@operator("Adagrad", domain=_DOMAIN)
class Adagrad(Optimizer):
    """Gradient descent where H, the sum of squared gradients, divides each element's rate."""

    decay_factor: float = 0.0
    epsilon: float = 0.0
    norm_coefficient: float = 0.0

    def scalars(self, rate: Expr, count: Expr) -> Sequence[Expr]:
        return (rate / (1 + count * self.decay_factor),)

    def step(self, scalars: Sequence[Expr], x: Expr, gradient: Expr, *states: Expr) -> Sequence[Expr]:
        (rate,), (square,) = scalars, states
        gradient = self.norm_coefficient * x + gradient
        square = square + gradient * gradient
        return x - rate * gradient / (k.sqrt(square) + self.epsilon), square


@operator("Adam", domain=_DOMAIN)
class Adam(Optimizer):
    """Gradient descent by running means of gradients, V, and of their squares, H.

    Outputs have the type of X: onnx.reference gives double for a single tensor and float for several, whatever the
    inputs are.
    """

    states = 2
    alpha: float = _single(0.9)
    beta: float = _single(0.999)
    epsilon: float = _single(1e-6)
    norm_coefficient: float = 0.0
    norm_coefficient_post: float = 0.0

    def scalars(self, rate: Expr, count: Expr) -> Sequence[Expr]:
        one = k.constant(1, count.dtype)
        mean, square = (one - k.power(k.constant(base, count.dtype), count) for base in (self.alpha, self.beta))
        return (k.where(count > 0, rate * k.sqrt(square) / mean, rate),)

    def step(self, scalars: Sequence[Expr], x: Expr, gradient: Expr, *states: Expr) -> Sequence[Expr]:
        (rate,), (mean, square) = scalars, states
        gradient = self.norm_coefficient * x + gradient
        mean = self.alpha * mean + (1 - self.alpha) * gradient
        square = self.beta * square + (1 - self.beta) * gradient * gradient
        moved = x - rate * mean / (k.sqrt(square) + self.epsilon)
        return (1 - self.norm_coefficient_post) * moved, mean, square
