"""Small models that ask for more memory than there is get a typed error before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from sardonyx import InferenceSession, errors
from sardonyx.ops.framework.result_size import result_bytes
from sardonyx.runtime import control_groups
from sardonyx.runtime.memory import memory
from tests.graph.models import build, info, model, node, run

HUGE = 1 << 22
ROWS, COLUMNS = np.zeros((HUGE, 1), np.float32), np.zeros((1, HUGE), np.float32)
INT64 = TensorProto.INT64


def test_available_memory_is_plausible() -> None:
    assert 1 << 20 < memory.available_bytes() < 1 << 60
    memory.require(1 << 10, "a small buffer")
    with pytest.raises(errors.Fail, match="Failed to allocate memory for requested buffer of size 1152921504606846976"):
        memory.require(1 << 60, "a buffer")


def test_limits_of_all_control_groups_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "_ROOT", str(tmp_path))
    monkeypatch.setattr(control_groups, "_OWN", str(tmp_path / "own"))
    (tmp_path / "own").write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder, limit in ((tmp_path / "a", "1000000"), (tmp_path / "a" / "b", "max")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("400000\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert min(memory._candidates()) == 650000


def ints(name: str, count: int) -> Any:
    return info(name, (count,), INT64)


@pytest.mark.parametrize(
    ("single", "feeds"),
    [
        (node("ConstantOfShape", ["s"], ["y"]), {"s": np.array([HUGE, HUGE])}),
        (node("Tile", ["a", "s"], ["y"]), {"a": ROWS[:8], "s": np.array([HUGE, HUGE])}),
        (node("MatMul", ["a", "b"], ["y"]), {"a": ROWS, "b": COLUMNS}),
        (node("Add", ["a", "b"], ["y"]), {"a": ROWS, "b": COLUMNS}),
        (node("Less", ["a", "b"], ["y"]), {"a": ROWS, "b": COLUMNS}),
        (node("Pad", ["a", "s"], ["y"]), {"a": ROWS[:1], "s": np.array([HUGE, HUGE, 0, HUGE])}),
        (node("Range", ["i", "j", "k"], ["y"]), {"i": np.array(0), "j": np.array(1 << 50), "k": np.array(1)}),
        (node("HannWindow", ["i"], ["y"]), {"i": np.array(1 << 50)}),
    ],
    ids=lambda item: item.op_type if hasattr(item, "op_type") else "",
)
def test_results_beyond_all_memory(single: Any, feeds: dict[str, np.ndarray]) -> None:
    inputs = [
        info(name, ["n"] if name == "s" else ["n"] * value.ndim, INT64 if value.dtype == np.int64 else 1)
        for name, value in feeds.items()
    ]
    kind = TensorProto.BOOL if single.op_type == "Less" else INT64 if single.op_type == "Range" else 1
    output = helper.make_tensor_value_info("y", kind, None)
    with pytest.raises(errors.Fail, match="Failed to allocate memory for requested buffer of size"):
        run(model([single], inputs, [output]), **feeds)


def test_expanded_view_is_not_copied_out_of_memory() -> None:
    nodes = [node("Expand", ["a", "s"], ["e"]), node("Reshape", ["e", "flat"], ["y"])]
    proto = model(
        nodes,
        [info("a", (1, 1)), ints("s", 2)],
        [helper.make_tensor_value_info("y", 1, None)],
        [helper.make_tensor("flat", INT64, [1], [-1])],
    )
    with pytest.raises(errors.Fail, match="Failed to allocate memory for requested buffer of size"):
        run(proto, a=np.zeros((1, 1), np.float32), s=np.array([HUGE, HUGE]))


@pytest.mark.parametrize(
    ("single", "inputs"),
    [
        (node("ConstantOfShape", ["s"], ["y"]), [np.array([3, 4])]),
        (node("Expand", ["x", "s"], ["y"]), [np.zeros((3, 1), np.float32), np.array([2, 1, 4])]),
        (node("Tile", ["x", "s"], ["y"]), [np.zeros((3, 1), np.float32), np.array([2, 5])]),
        (node("Range", ["a", "b", "c"], ["y"]), [np.array(1), np.array(10), np.array(4)]),
        (node("Pad", ["x", "p"], ["y"]), [np.zeros((3, 2), np.float32), np.array([1, 0, 2, 1])]),
        (node("MatMul", ["a", "b"], ["y"]), [np.zeros((2, 3, 4), np.float32), np.zeros((4, 5), np.float32)]),
        (node("Gather", ["x", "i"], ["y"], axis=1), [np.zeros((3, 2), np.float32), np.array([0, 1, 1])]),
        (node("Concat", ["a", "b"], ["y"], axis=0), [np.zeros((3, 2), np.float32), np.zeros((1, 2), np.float32)]),
        (node("Resize", ["x", "", "f"], ["y"]), [np.zeros((2, 2), np.float32), None, np.array([2, 3], np.float32)]),
        (
            node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]),
            [np.zeros((1, 2, 3, 3), np.float32), np.zeros((2, 4, 2, 2), np.float32)],
        ),
    ],
    ids=lambda item: item.op_type if hasattr(item, "op_type") else "",
)
def test_foreseen_sizes_are_exact(single: Any, inputs: list[Any]) -> None:
    from onnx.reference import ReferenceEvaluator

    names = [name for name in single.input if name]
    given = {name: value for name, value in zip(single.input, inputs, strict=True) if name}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(given[name].dtype), None) for name in names
    ]
    kind = INT64 if single.op_type == "Range" else 1
    proto = model([single], infos, [helper.make_tensor_value_info("y", kind, None)])
    (expected,) = ReferenceEvaluator(proto).run(None, given)
    (checked,) = build(proto).model.graph
    assert result_bytes(checked, inputs) == expected.nbytes


def test_convolution_counts_its_padded_input() -> None:
    proto = model(
        [node("Conv", ["x", "w"], ["y"], pads=[1 << 20] * 4)],
        [info("x", (1, 1, 4, 4)), info("w", (1, 1, 3, 3))],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    with pytest.raises(errors.OnnxRuntimeError):
        run(proto, x=np.zeros((1, 1, 4, 4), np.float32), w=np.zeros((1, 1, 3, 3), np.float32))


def test_a_view_that_is_a_result_is_not_copied_out_of_memory() -> None:
    proto = model(
        [node("Expand", ["a", "s"], ["y"])],
        [info("a", (1, 1)), ints("s", 2)],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    session = InferenceSession(proto.SerializeToString())
    with pytest.raises(errors.Fail, match="Failed to allocate memory for requested buffer of size"):
        session.run(None, {"a": np.zeros((1, 1), np.float32), "s": np.array([HUGE, HUGE])})


def test_a_constant_range_is_not_made_while_the_session_is() -> None:
    """Inference needs its length alone."""
    constants = [helper.make_tensor(name, INT64, [], [value]) for name, value in (("i", 0), ("j", 1 << 40), ("k", 1))]
    proto = model(
        [node("Range", ["i", "j", "k"], ["r"]), node("Shape", ["r"], ["y"])],
        [],
        [helper.make_tensor_value_info("y", INT64, [1])],
        constants,
    )
    with pytest.raises(errors.Fail, match="Failed to allocate memory for requested buffer of size"):
        InferenceSession(proto.SerializeToString()).run(None, {})
