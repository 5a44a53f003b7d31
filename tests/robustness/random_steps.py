"""What random graphs grow by: usual operators, and the small groups that fusions look for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tests.robustness.random_graph import Dim, DoesNotFitError, N, RandomGraph, Shape

_UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Softplus",
          "Identity", "Gelu", "Mish")  # fmt: skip
_BINARY = ("Add", "Add", "Mul", "Sub", "Max", "Min")
_AFTER = ("Relu", "Gelu", "Sigmoid", "Tanh", "HardSwish")
_FLOAT16, _FLOAT = 10, 1
_MOST_RANK = 5


def random_graph(seed: int, nodes: int) -> RandomGraph:
    """A graph of about so many nodes, the same one for the same seed."""
    g = RandomGraph(seed)
    for _ in range(g.choose.choice([1, 1, 2, 3])):
        g.input()
    steps, weights = list(_STEPS), list(_STEPS.values())
    for _ in range(4 * nodes):
        if len(g.nodes) >= nodes and g.outputs():
            break
        try:
            g.choose.choices(steps, weights)[0](g)
        except DoesNotFitError:
            continue
    return g


def _known(shape: Shape) -> list[int]:
    """The axes whose size is known."""
    return [axis for axis, dim in enumerate(shape) if dim != N]


def _axis(g: RandomGraph, shape: Shape, fits: Callable[[int], bool] = lambda size: True) -> tuple[int, int]:
    """An axis of known size that fits, and its size."""
    axes = [(axis, dim) for axis, dim in enumerate(shape) if isinstance(dim, int) and fits(dim)]
    if not axes:
        raise DoesNotFitError
    return g.choose.choice(axes)


def _with(shape: Shape, axis: int, size: Dim) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _sizes(shape: Sequence[Dim]) -> list[int]:
    """Known sizes."""
    if N in shape:
        raise DoesNotFitError
    return [int(dim) for dim in shape]


def _needs(condition: bool) -> None:
    if not condition:
        raise DoesNotFitError


def _image(g: RandomGraph) -> tuple[str, Dim, int, list[int]]:
    """A value with channels and places: its name, its batch, how many channels, and the sizes."""
    name = g.pick(lambda shape: len(shape) in (3, 4) and N not in shape[1:])
    batch, channels, *sizes = g.shapes[name]
    return name, batch, int(channels), _sizes(sizes)


def _elementwise(g: RandomGraph) -> None:
    x = g.pick()
    shape = g.shapes[x]
    kind = g.choose.choice([*_UNARY, "Clip", "Sqrt", "Cast", "Pow"])
    if kind == "Clip":
        g.one("Clip", [x, g.number(-0.7), g.number(0.9)], shape)
    elif kind == "Sqrt":
        g.one("Sqrt", [g.one("Abs", [x], shape)], shape)
    elif kind == "Cast":
        g.one("Cast", g.other("Cast", [x], shape, to=_FLOAT16), shape, to=_FLOAT)
    elif kind == "Pow":
        g.one("Pow", [x, g.number(2)], shape)
    else:
        g.one(kind, [x], shape)


def _combine(g: RandomGraph) -> None:
    """Two values, or one and a constant, or one with itself."""
    x = g.pick()
    shape = g.shapes[x]
    kind, y = g.choose.choice([*_BINARY, "Div", "Where"]), x
    if g.choose.random() < 0.4:
        sizes = [1 if dim == N or g.choose.random() < 0.4 else int(dim) for dim in shape]
        y = g.weight(*sizes[g.choose.choice([0, 0, len(sizes) - 1]) :])
    elif g.choose.random() < 0.85:
        y = g.pick(lambda other: _spreads(other, shape))
    operands = g.choose.sample([x, y], 2)
    if kind == "Where":
        (condition,) = g.other("Greater", [x, g.number(0.1)], shape)
        g.one("Where", [condition, *operands], shape)
    elif kind == "Div":
        g.one("Div", [y, g.one("Add", [g.one("Abs", [x], shape), g.number(1.5)], shape)], shape)
    else:
        g.one(kind, operands, shape)


def _spreads(shape: Shape, to: Shape) -> bool:
    """Whether a value of a shape is repeated to another one with as many axes."""
    return len(shape) == len(to) and all(dim in (size, 1) for dim, size in zip(shape, to, strict=True))


def _transpose(g: RandomGraph) -> None:
    x = g.pick()
    shape = g.shapes[x]
    order = g.choose.sample(range(len(shape)), len(shape))
    g.one("Transpose", [x], [shape[axis] for axis in order], perm=order)


def _reshape(g: RandomGraph) -> None:
    """Two axes become one, or one two."""
    x = g.pick(lambda shape: len(shape) >= 2)
    shape = g.shapes[x]
    at = g.choose.randrange(len(shape) - 1)
    new: list[Dim]
    if g.choose.random() < 0.5 and N not in shape[at : at + 2]:
        new = [*shape[:at], int(shape[at]) * int(shape[at + 1]), *shape[at + 2 :]]
    else:
        _needs(len(shape) < _MOST_RANK)
        axis, size = _axis(g, shape, lambda size: size > 1)
        outer = g.choose.choice([factor for factor in range(1, size + 1) if size % factor == 0])
        new = [*shape[:axis], outer, size // outer, *shape[axis + 1 :]]
    g.one("Reshape", [x, g.integers(*(-1 if isinstance(dim, str) else dim for dim in new))], new)


def _flatten(g: RandomGraph) -> None:
    """By the size of the batch, as exporters write it."""
    x = g.pick(lambda shape: len(shape) >= 2 and shape[0] == N and N not in shape[1:])
    shape = g.shapes[x]
    new: list[Dim] = [N, math.prod(_sizes(shape[1:]))]
    if g.choose.random() < 0.5:
        g.one("Flatten", [x], new)
        return
    (sizes,) = g.other("Shape", [x], [len(shape)])
    (batch,) = g.other("Gather", [sizes, g.integers(0)], [1])
    (target,) = g.other("Concat", [batch, g.integers(-1)], [2], axis=0)
    g.one("Reshape", [x, target], new)


def _slice(g: RandomGraph) -> None:
    x = g.pick()
    shape = g.shapes[x]
    axis, size = _axis(g, shape)
    begin = g.choose.randrange(size)
    end = g.choose.randint(begin + 1, size)
    step = g.choose.choice([1, 1, 1, 2, -1])
    bounds = (end - 1, begin - 1 - size) if step < 0 else (begin, end)
    taken = _with(shape, axis, -(-(end - begin) // abs(step)))
    g.one("Slice", [x, *(g.integers(one) for one in (*bounds, axis, step))], taken)


def _pad(g: RandomGraph) -> None:
    x = g.pick()
    shape = g.shapes[x]
    axis, size = _axis(g, shape)
    before, after = g.choose.randint(0, 2), g.choose.randint(0, 2)
    mode = "reflect" if size > 2 and g.choose.random() < 0.3 else g.choose.choice(["constant", "edge"])
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, axis] = before, after
    g.one("Pad", [x, g.constant(pads.reshape(-1))], _with(shape, axis, size + before + after), mode=mode)


def _unsqueeze(g: RandomGraph) -> None:
    x = g.pick(lambda shape: len(shape) < _MOST_RANK)
    shape = g.shapes[x]
    at = g.choose.randint(0, len(shape))
    g.one("Unsqueeze", [x, g.integers(at)], [*shape[:at], 1, *shape[at:]])


def _squeeze(g: RandomGraph) -> None:
    x = g.pick(lambda shape: len(shape) > 1 and 1 in shape)
    shape = g.shapes[x]
    axis, _ = _axis(g, shape, lambda size: size == 1)
    g.one("Squeeze", [x, g.integers(axis)], [*shape[:axis], *shape[axis + 1 :]])


def _repeat(g: RandomGraph) -> None:
    x = g.pick()
    shape = g.shapes[x]
    if g.choose.random() < 0.5:
        axis, size = _axis(g, shape)
        repeats = [2 if at == axis else 1 for at in range(len(shape))]
        g.one("Tile", [x, g.integers(*repeats)], _with(shape, axis, 2 * size))
    else:
        axis, _ = _axis(g, shape, lambda size: size == 1)
        target = [3 if at == axis else 1 for at in range(len(shape))]
        g.one("Expand", [x, g.integers(*target)], _with(shape, axis, 3))


def _gather(g: RandomGraph) -> None:
    x = g.pick(lambda shape: len(shape) > 1)
    shape = g.shapes[x]
    axis, size = _axis(g, shape)
    if g.choose.random() < 0.3:
        index = g.constant(g.choose.randrange(-size, size), np.int64)
        g.one("Gather", [x, index], [*shape[:axis], *shape[axis + 1 :]], axis=axis)
    else:
        indices = g.numbers.integers(-size, size, g.choose.randint(1, 6))
        g.one("Gather", [x, g.constant(indices)], _with(shape, axis, len(indices)), axis=axis)


def _roll(g: RandomGraph) -> None:
    """The end of an axis before its beginning."""
    x = g.pick()
    shape = g.shapes[x]
    axis, size = _axis(g, shape, lambda size: size > 1)
    cut = g.choose.randrange(1, size)
    parts = [
        g.one("Slice", [x, *(g.integers(at) for at in (begin, end, axis))], _with(shape, axis, end - begin))
        for begin, end in ((cut, size), (0, cut))
    ]
    g.one("Concat", parts, shape, axis=axis)


def _split(g: RandomGraph) -> None:
    x = g.pick()
    shape = g.shapes[x]
    axis, size = _axis(g, shape, lambda size: size > 1)
    cuts = sorted(g.choose.sample(range(1, size), min(size - 1, g.choose.choice([1, 1, 2]))))
    lengths = [end - begin for begin, end in zip([0, *cuts], [*cuts, size], strict=True)]
    if size % 2 == 0 and g.choose.random() < 0.5:
        lengths = [size // 2] * 2
    parts = g.add("Split", [x, g.integers(*lengths)], *(_with(shape, axis, one) for one in lengths), axis=axis)
    if len(set(lengths)) == 1 and g.choose.random() < 0.4:
        gate = g.one("Sigmoid", [parts[1]], g.shapes[parts[1]])
        g.one("Mul", [parts[0], gate], g.shapes[gate])


def _concat(g: RandomGraph) -> None:
    """Some values side by side, one of them perhaps twice or through an operator."""
    x = g.pick()
    shape = g.shapes[x]
    axis, size = _axis(g, shape)
    parts = [x]
    for _ in range(g.choose.choice([1, 1, 2, 3])):
        part = g.pick(lambda other: len(other) == len(shape) and other[axis] != N and _with(other, axis, size) == shape)
        own = g.shapes[part]
        parts.append(g.one(g.choose.choice(["Relu", "Tanh"]), [part], own) if g.choose.random() < 0.3 else part)
    total = sum(int(g.shapes[part][axis]) for part in parts)
    g.choose.shuffle(parts)
    g.one("Concat", parts, _with(shape, axis, total), axis=axis - g.choose.choice([0, len(shape)]))


def _normalize(g: RandomGraph) -> None:
    x = g.pick(lambda shape: shape[-1] != N)
    shape = g.shapes[x]
    (width,) = _sizes(shape[-1:])
    kind = g.choose.choice(["LayerNormalization", "Softmax", "LogSoftmax", "RMS"])
    if kind == "LayerNormalization":
        if g.choose.random() < 0.5:
            x = g.one("Add", [x, g.one("MatMul", [x, g.weight(width, width, scale=0.1)], shape)], shape)
        g.one(kind, [x, g.weight(width), g.weight(width)], shape, epsilon=1e-3)
    elif kind == "RMS":
        one = (*shape[:-1], 1)
        mean = g.one("ReduceMean", [g.one("Mul", [x, x], shape), g.integers(-1)], one)
        g.one("Div", [x, g.one("Sqrt", [g.one("Add", [mean, g.number(1e-2)], one)], one)], shape)
    else:
        g.one(kind, [x], shape, axis=_axis(g, shape)[0])


def _reduce(g: RandomGraph) -> None:
    x = g.pick(lambda shape: len(shape) > 1)
    shape = g.shapes[x]
    kind = g.choose.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "CumSum", "TopK"])
    axis, size = _axis(g, shape)
    if kind == "CumSum":
        g.one(kind, [x, g.constant(axis, np.int64)], shape, reverse=g.choose.randint(0, 1))
    elif kind == "TopK":
        count = g.choose.randint(1, size)
        new = _with(shape, axis, count)
        g.best(kind, [x, g.integers(count)], new, axis=axis)
    else:
        keeps = g.choose.randint(0, 1)
        new = _with(shape, axis, 1) if keeps else (*shape[:axis], *shape[axis + 1 :])
        g.one(kind, [x, g.integers(axis)], new, keepdims=keeps)


def _linear(g: RandomGraph) -> None:
    x = g.pick(lambda shape: len(shape) > 1 and shape[-1] != N)
    *before, last = g.shapes[x]
    width, units = int(last), g.choose.choice([1, 4, 8, 16, 17, 32])
    weight = g.weight(width, units, scale=1 / math.sqrt(width))
    shape = (*before, units)
    if len(before) == 1 and g.choose.random() < 0.3:
        y = g.one("Gemm", [x, weight, g.weight(units)], shape, alpha=0.5)
    else:
        y = g.one("MatMul", [x, weight], shape)
        if g.choose.random() < 0.6:
            y = g.one("Add", g.choose.sample([y, g.weight(units)], 2), shape)
    if g.choose.random() < 0.5:
        g.one(g.choose.choice(_AFTER), [y], shape)


def _product(g: RandomGraph) -> None:
    """Of two values, or of one and itself, of which either may be scaled, as in attention."""
    x = g.pick(lambda shape: len(shape) > 1 and shape[-1] != N)
    if g.choose.random() < 0.4:
        x = g.one("Mul", [x, g.number(0.5)], g.shapes[x])
    shape = g.shapes[x]
    *batch, rows, inner = shape
    y = x
    if g.choose.random() < 0.6:
        y = g.pick(lambda other: len(other) == len(shape) and other[:-2] == shape[:-2] and inner in other[-2:])
    if g.shapes[y][-2] != inner:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        y = g.one("Transpose", [y], [g.shapes[y][axis] for axis in order], perm=order)
    result = (*batch, rows, g.shapes[y][-1])
    g.one("Mul", [g.one("MatMul", [x, y], result), g.number(1 / math.sqrt(int(inner)))], result)


def _windows(g: RandomGraph, sizes: Sequence[int], kernels: Sequence[int]) -> tuple[dict[str, list[int]], list[int]]:
    """Attributes of windows over these sizes, and how many windows there are."""
    kernel, strides, pads, counts = list[int](), list[int](), list[int](), list[int]()
    for size in sizes:
        taps, step = g.choose.choice(kernels), g.choose.choice([1, 1, 2])
        pad = g.choose.randint(0, (taps - 1) // 2)
        _needs(size + 2 * pad >= taps)
        kernel.append(taps)
        strides.append(step)
        pads.append(pad)
        counts.append((size + 2 * pad - taps) // step + 1)
    return {"kernel_shape": kernel, "strides": strides, "pads": pads * 2}, counts


def _convolution(g: RandomGraph) -> None:
    """With what usually follows it: a normalization, an activation, a sum, squeeze and excitation."""
    x, batch, channels, sizes = _image(g)
    attributes, counts = _windows(g, sizes, (1, 1, 3, 3, 5))
    groups = g.choose.choice([1, 1, 1, channels, 2 if channels % 2 == 0 else 1])
    filters = groups * g.choose.choice([1, 2]) if groups > 1 else g.choose.choice([1, 4, 8, 16, 17, 32])
    _needs(filters <= 64)
    inputs = [x, g.weight(filters, channels // groups, *attributes["kernel_shape"], scale=0.3)]
    shape = (batch, filters, *counts)
    y = g.one("Conv", [*inputs, g.weight(filters)][: g.choose.choice([2, 3, 3])], shape, group=groups, **attributes)
    if g.choose.random() < 0.25:
        variance = g.constant(g.numbers.random(filters) + 0.5, np.float32)
        y = g.one("BatchNormalization", [y, *(g.weight(filters) for _ in range(3)), variance], shape)
    if g.choose.random() < 0.4:
        y = g.one(g.choose.choice(_AFTER), [y], shape)
    if g.choose.random() < 0.3:
        y = g.one("Mul", [y, g.one("Sigmoid", [y], shape)], shape)
    if g.choose.random() < 0.4 and any(of == shape and name != y for name, of in g.shapes.items()):
        y = g.one("Add", [y, g.pick(lambda of: of == shape)], shape)
    if g.choose.random() < 0.2:
        one = (batch, filters, *(1 for _ in counts))
        squeezed, weight = g.one("GlobalAveragePool", [y], one), g.weight(filters, filters, *[1] * len(counts))
        g.one("Mul", [y, g.one("Sigmoid", [g.one("Conv", [squeezed, weight], one)], one)], shape)


def _pool(g: RandomGraph) -> None:
    x, batch, channels, sizes = _image(g)
    attributes, counts = _windows(g, sizes, (2, 3, 5))
    g.one(g.choose.choice(["MaxPool", "MaxPool", "AveragePool"]), [x], (batch, channels, *counts), **attributes)


def _enlarge(g: RandomGraph) -> None:
    x, batch, channels, sizes = _image(g)
    _needs(len(sizes) == 2)
    kind, larger = g.choose.choice(["Resize", "Resize", "DepthToSpace", "ConvTranspose"]), [2 * size for size in sizes]
    if kind == "Resize":
        mode, where = g.choose.choice(["nearest", "linear"]), g.choose.choice(["asymmetric", "half_pixel"])
        inputs = [x, "", g.constant([1, 1, 2, 2], np.float32)]
        shape = (batch, channels, *larger)
        g.one(kind, inputs, shape, mode=mode, coordinate_transformation_mode=where, nearest_mode="floor")
    elif kind == "DepthToSpace":
        _needs(channels % 4 == 0)
        g.one(kind, [x], (batch, channels // 4, *larger), blocksize=2, mode=g.choose.choice(["DCR", "CRD"]))
    else:
        filters = g.choose.choice([1, 4, 8])
        weight = g.weight(channels, filters, 2, 2, scale=0.3)
        g.one(kind, [x, weight], (batch, filters, *larger), kernel_shape=[2, 2], strides=[2, 2])


# How often each is tried.
_STEPS: dict[Callable[[RandomGraph], None], int] = {
    _elementwise: 6, _combine: 6, _transpose: 3, _reshape: 3, _flatten: 1, _slice: 3, _pad: 1, _unsqueeze: 1,
    _squeeze: 1, _repeat: 1, _gather: 2, _roll: 1, _split: 5, _concat: 5, _normalize: 3, _reduce: 2, _linear: 3,
    _product: 3, _convolution: 5, _pool: 1, _enlarge: 1,
}  # fmt: skip
