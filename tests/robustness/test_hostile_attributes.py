"""Attributes and sizes that no model has in earnest: typed errors, or results, at once and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.robustness.sandbox import Sandbox

HUGE = 2**62


@dataclass(frozen=True)
class Case:
    """One node: the shapes of its float inputs, tensors in other places, and what its error says.

    The error may be one of several, with "|" between them; empty where the node runs.
    """

    operator: str
    error: str
    attributes: Mapping[str, Any]
    inputs: Sequence[tuple[int, ...] | np.ndarray[Any, Any] | None] = ((1, 2, 6, 6),)
    outputs: int = 1

    @property
    def model(self) -> bytes:
        names, values, constants = [], [], []
        for index, item in enumerate(self.inputs):
            names.append("" if item is None else f"x{index}")
            if isinstance(item, np.ndarray):
                constants.append(numpy_helper.from_array(item, names[-1]))
            elif item is not None:
                values.append(helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, item))
        results = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.operator, names, results, **self.attributes)
        infos = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph([node], "hostile", values, infos, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return model.SerializeToString()


def _numbers(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


IMAGE = (1, 2, 6, 6)
FILTERS, TURNED = (3, 2, 3, 3), (2, 3, 3, 3)
ROWS, SCALES = (4, 6), np.ones((4, 1), np.float32)
NEGATIVE = {"pads": [-1, -1, -1, -1]}
POOL = {"kernel_shape": [2, 2]}
SHRINKING = {"antialias": 1, "mode": "linear"}
TOO_FAR = "more than 2147483647 places"
TOO_MUCH = "exceeds 64 bits|Failed to allocate memory"

CASES: dict[str, Case] = {
    # Negative padding, of which the operators' texts say that there is none.
    "Conv": Case("Conv", "must not be negative", NEGATIVE, (IMAGE, FILTERS)),
    "ConvTranspose": Case("ConvTranspose", "must not be negative", NEGATIVE, (IMAGE, TURNED)),
    "ConvTranspose with strides": Case(
        "ConvTranspose", "must not be negative", NEGATIVE | {"strides": [2, 2]}, (IMAGE, TURNED)
    ),
    "DeformConv": Case("DeformConv", "must not be negative", NEGATIVE, (IMAGE, FILTERS, (1, 18, 2, 2))),
    "ConvInteger": Case(
        "ConvInteger", "must not be negative", NEGATIVE, (np.ones(IMAGE, np.uint8), np.ones(FILTERS, np.uint8))
    ),
    **{name: Case(name, "must not be negative", NEGATIVE | POOL) for name in ("MaxPool", "AveragePool", "LpPool")},
    "MaxUnpool": Case("MaxUnpool", "must not be negative", NEGATIVE | POOL, (IMAGE, np.zeros(IMAGE, np.int64))),
    "Col2Im": Case("Col2Im", "must not be negative", NEGATIVE, ((1, 8, 9), _numbers(5, 5), _numbers(2, 2))),
    # Windows that take for ever to count.
    "a kernel beyond 31 bits": Case("MaxPool", TOO_FAR, {"kernel_shape": [2**31, 1]}),
    "pads beyond 31 bits": Case("MaxPool", f"{TOO_FAR}|{TOO_MUCH}", POOL | {"pads": [2**31, 0, 2**31, 0]}),
    "an average of huge pads": Case("AveragePool", f"{TOO_FAR}|{TOO_MUCH}", POOL | {"pads": [HUGE, 0, HUGE, 0]}),
    "a convolution of huge pads": Case(
        "Conv", f"{TOO_FAR}|{TOO_MUCH}", {"pads": [2**31, 0, 2**31, 0]}, (IMAGE, FILTERS)
    ),
    "huge dilations": Case("Conv", "is larger than the padded input", {"dilations": [HUGE, 1]}, (IMAGE, FILTERS)),
    "huge strides": Case("Conv", "", {"strides": [HUGE, HUGE]}, (IMAGE, FILTERS)),
    "huge strides of a pool with a last window": Case("MaxPool", "", POOL | {"strides": [HUGE, HUGE], "ceil_mode": 1}),
    "no strides": Case("MaxPool", "must be at least 1", POOL | {"strides": [0, 1]}),
    # Transposed convolutions.
    "negative groups": Case("ConvTranspose", "group must be at least 1", {"group": -1}, (IMAGE, TURNED)),
    "no groups": Case("ConvTranspose", "group must be at least 1", {"group": 0}, (IMAGE, TURNED)),
    "negative groups of Conv": Case("Conv", "with group -1 need", {"group": -1}, (IMAGE, FILTERS)),
    "huge strides between elements": Case("ConvTranspose", TOO_MUCH, {"strides": [HUGE, 1]}, (IMAGE, TURNED)),
    "huge pads of a result": Case("ConvTranspose", "the pads cut more", {"pads": [HUGE, 1, 1, 1]}, (IMAGE, TURNED)),
    "a huge output_padding": Case("ConvTranspose", TOO_MUCH, {"output_padding": [HUGE, 1]}, (IMAGE, TURNED)),
    "a negative output_shape": Case("ConvTranspose", "the pads cut more", {"output_shape": [-5, 1]}, (IMAGE, TURNED)),
    "no channels": Case("ConvTranspose", "", {}, ((2, 0, 3, 3), (0, 4, 2, 2))),
    "filters of another rank": Case("ConvTranspose", "weights of rank 1 do not fit", {}, (IMAGE, (3,))),
    # Blocks and neighbours: no more than there are.
    "QuantizeLinear": Case("QuantizeLinear", "", {"block_size": HUGE, "axis": 1}, (ROWS, SCALES)),
    "DequantizeLinear": Case("DequantizeLinear", "", {"block_size": HUGE, "axis": 1}, (np.ones(ROWS, np.int8), SCALES)),
    "LRN of many": Case("LRN", "", {"size": HUGE}),
    "LRN of none": Case("LRN", "size must be at least 1", {"size": -HUGE}),
    # Padding.
    **{
        f"Pad {mode}": Case("Pad", TOO_MUCH, {"mode": mode}, (ROWS, _numbers(0, 2**40, 0, 0)))
        for mode in ("constant", "edge", "wrap")
    },
    "Pad beyond 64 bits": Case("Pad", TOO_MUCH, {"mode": "wrap"}, (ROWS, _numbers(0, HUGE, 0, HUGE))),
    "Pad by reflection": Case(
        "Pad", f"cannot pad axis 1|{TOO_MUCH}", {"mode": "reflect"}, (ROWS, _numbers(0, 2**40, 0, 0))
    ),
    # Resizing nothing, and without end.
    "half of nothing": Case("Resize", "", SHRINKING, ((1, 1, 0, 4), None, np.array([1, 1, 0.5, 0.5], np.float32))),
    "something of nothing": Case(
        "Resize", "it has no elements", SHRINKING, ((1, 1, 0, 4), None, None, _numbers(1, 1, 2, 2))
    ),
    "the nearest of nothing": Case(
        "Resize", "it has no elements", {}, ((1, 1, 0, 4), None, None, _numbers(1, 1, 2, 2))
    ),
    "an endless scale": Case(
        "Resize", f"{TOO_MUCH}|infinity", {}, (IMAGE, None, np.array([1, 1, 1e18, np.inf], np.float32))
    ),
    # Operands that do not fit a product.
    "C of another width": Case("Gemm", "(2, 4), (5,) do not broadcast|(2,4) (5,)", {}, ((2, 3), (3, 4), (5,))),
    # Others.
    "nothing among terms": Case("Sum", "input 1 is marked variadic but has an empty string", {}, (ROWS, None)),
    "Slice along fewer axes": Case(
        "Slice", "not 2 starts, 2 ends, 1 axes", {}, (ROWS, _numbers(0, 0), _numbers(1, 1), _numbers(0))
    ),
    "Split into endless parts": Case("Split", "but the node has 2 outputs", {"num_outputs": HUGE}, (ROWS,), 2),
    "DepthToSpace": Case("DepthToSpace", "do not divide", {"blocksize": HUGE}),
    "GroupNormalization": Case("GroupNormalization", "do not divide", {"num_groups": HUGE}, (IMAGE, (2,), (2,))),
    "RoiAlign of huge regions": Case(
        "RoiAlign", TOO_MUCH, {"output_height": 2**40}, (IMAGE, (1, 4), np.zeros(1, np.int64))
    ),
    "RoiAlign of many samples": Case(
        "RoiAlign", "is more than 1024", {"sampling_ratio": 2**31}, (IMAGE, (1, 4), np.zeros(1, np.int64))
    ),
    "MaxUnpool of huge windows": Case(
        "MaxUnpool", f"{TOO_MUCH}|dimension exceeded", {"kernel_shape": [HUGE, 2]}, (IMAGE, np.zeros(IMAGE, np.int64))
    ),
    "Tile": Case("Tile", TOO_MUCH, {}, (ROWS, _numbers(HUGE, 4))),
    "OneHot": Case("OneHot", TOO_MUCH, {}, (_numbers(1, 2), np.array(HUGE), np.array([0, 1], np.float32))),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path_factory.mktemp("hostile"))
    yield found
    found.close()


@pytest.mark.parametrize("kernels", ["", "numpy"], ids=["native", "host"])
@pytest.mark.parametrize("name", list(CASES))
def test_an_attribute_is_taken_or_refused(name: str, kernels: str, sandbox: Sandbox) -> None:
    case = CASES[name]
    found = sandbox.run(case.model, kernels)
    assert found.typed, found.text
    if case.error:
        assert any(part in found.text for part in case.error.split("|")), found.text
    else:
        assert found.text == ""
