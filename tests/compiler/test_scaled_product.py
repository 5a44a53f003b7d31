"""Squeeze-and-excitation before a convolution 1x1: the filters are scaled where they are less than the map."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.llvm.target import host_targets

Array = np.ndarray[Any, Any]

# Channels of a map, each scaled by what its mean says, and brought together: by filters with and without a bias.
NETWORK = """
    a = Conv<pads=[1,1,1,1]>(x, w0) m = GlobalAveragePool(a) c = Conv(m, w1, b1) s = Sigmoid(c)
    t = Mul(FACTORS) p = Conv(t, w2, b2) q = Conv(p, w3) r = Relu(q) y = Add(r, p)
"""
WEIGHTS = {
    "w0": (35, 3, 3, 3),
    "w1": (35, 35, 1, 1),
    "b1": (35,),
    "w2": (19, 35, 1, 1),
    "b2": (19,),
    "w3": (19, 19, 1, 1),
}


def session(
    body: str, kernels: str = "", *, threads: int = 1, items: str = "0", precision: str = "float32"
) -> ort.InferenceSession:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float[n, 3, h, w] x) => (float[] y) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(9)
    for name, shape in WEIGHTS.items():
        array = (0.3 * rng.standard_normal(shape)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    for key, entry in (("kernels", kernels), ("batch_items", items), ("precision", precision)):
        options.add_session_config_entry(f"sardonyx.cpu.{key}", entry)
    return ort.InferenceSession(made.SerializeToString(), options)


def image(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(shape).standard_normal(shape).astype(np.float32)}


def scales_filters(body: str, feeds: dict[str, Array]) -> bool:
    """Whether no loop goes over the whole map."""
    rows = explain(session(body), feeds).rows
    return not any(row.operators == ("Mul",) for row in rows)


@pytest.mark.parametrize("factors", ["a, s", "s, a"])
@pytest.mark.parametrize("variant", host_targets())
def test_scaled_filters_give_what_a_scaled_map_gives(variant: str, factors: str) -> None:
    body = NETWORK.replace("FACTORS", factors)
    one, reference = session(body, variant), session(body, "numpy")
    for shape in ((1, 3, 24, 31), (3, 3, 20, 17), (2, 3, 2, 2), (1, 3, 1, 1)):
        (wanted,) = reference.run(None, image(*shape))
        (found,) = one.run(None, image(*shape))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())


def test_filters_are_scaled_where_they_are_less_than_the_map() -> None:
    body = NETWORK.replace("FACTORS", "a, s")
    assert scales_filters(body, image(1, 3, 24, 31))
    assert not scales_filters(body, image(1, 3, 3, 3))


def test_a_map_that_somebody_else_reads_is_scaled() -> None:
    body = NETWORK.replace("FACTORS", "a, s").replace(
        "y = Add(r, p)", "u = Add(r, p) v = ReduceMean<keepdims=1>(t) y = Add(u, v)"
    )
    feeds = image(1, 3, 24, 31)
    assert not scales_filters(body, feeds)
    np.testing.assert_allclose(
        session(body).run(None, feeds)[0], session(body, "numpy").run(None, feeds)[0], rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("factors", ["a, m2", "m2, a"])
def test_other_products_are_left_alone(factors: str) -> None:
    """A factor for each place, which is the same for all channels, is no scale."""
    body = NETWORK.replace("FACTORS", factors).replace("t = Mul", "m2 = ReduceMean<axes=[1]>(a) t = Mul")
    body = body.replace("ReduceMean<axes=[1]>(a)", "ReduceMax(a, one)").replace(
        "a = Conv", "one = Constant<value_ints=[1]>() a = Conv"
    )
    feeds = image(2, 3, 24, 31)
    (wanted,) = session(body, "numpy").run(None, feeds)
    np.testing.assert_allclose(session(body).run(None, feeds)[0], wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())


def test_the_same_bits_for_any_threads_and_rounds() -> None:
    body = NETWORK.replace("FACTORS", "a, s")
    feeds = image(4, 3, 24, 31)
    first = session(body).run(None, feeds)[0].tobytes()
    assert first == session(body, threads=3).run(None, feeds)[0].tobytes()
    assert first == session(body, items="1").run(None, feeds)[0].tobytes()


def test_coarser_products_are_as_right_as_they_can_be() -> None:
    body = NETWORK.replace("FACTORS", "a, s")
    feeds = image(1, 3, 24, 31)
    (wanted,) = session(body, "numpy").run(None, feeds)
    (found,) = session(body, precision="bfloat16").run(None, feeds)
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
