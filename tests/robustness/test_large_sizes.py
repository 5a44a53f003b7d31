"""Sizes that a model declares, its attributes state or a run feeds: served or refused before memory is taken for them.

Each model runs in a process with three gibibytes and five seconds of the processor; memory that is taken without asking
whether it is there is a finding of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from tests.robustness.sandbox import Sandbox

MANY, BILLION = 40_000_000, 1_000_000_000
NO_MEMORY, OTHER_SHAPE, PADDING = "Failed to allocate memory", "Got invalid dimensions", "places along a dimension"


@dataclass(frozen=True)
class Form:
    """A graph in ONNX's text, what it is fed (shapes: ones), and what its error says.

    The error may be one of several, with "|" between them; empty where the graph runs.
    """

    inputs: str
    nodes: str
    feeds: Mapping[str, Sequence[int] | np.ndarray[Any, Any]]
    error: str
    result: str = "float"
    opset: int = 20
    kinds: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> bytes:
        domains = f'"" : {self.opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3'
        head = f"<ir_version: 8, opset_import: [{domains}]>"
        proto = onnx.parser.parse_model(f"{head} g ({self.inputs}) => ({self.result} y) {{ {self.nodes} }}")
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        return proto.SerializeToString()

    @property
    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {
            name: given if isinstance(given, np.ndarray) else np.ones(given, self.kinds.get(name, np.float32))
            for name, given in self.feeds.items()
        }


def sizes(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


def number(one: float, kind: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.array(one, kind)


FLAT, DEEP = "float[1, 2, {0}, 4] x", "float[1, 2, 4, {0}, 4] x"
FLAT_FEED, DEEP_FEED = {"x": (1, 2, 4, 4)}, {"x": (1, 2, 4, 4, 4)}
BYTES = {"x": np.uint8, "w": np.uint8}
SMALL = {"x": (1, 1, 3, 3)}


def declared(lines: int) -> dict[str, Form]:
    """An input of so many lines, where a run feeds few."""
    flat, deep = FLAT.format(lines), DEEP.format(lines)
    filters, turned = {**DEEP_FEED, "w": (1, 2, 2, 2, 2)}, {**DEEP_FEED, "w": (2, 1, 2, 2, 2)}
    scales = "s = Constant<value_floats = [1.0, 1.0, 2.0, 1.0]>()"
    return {
        "AveragePool": Form(flat, "y = AveragePool<kernel_shape = [3, 3]>(x)", FLAT_FEED, OTHER_SHAPE),
        **{
            name: Form(deep, f"y = {name}<kernel_shape = [3, 3, 3]>(x)", DEEP_FEED, OTHER_SHAPE)
            for name in ("MaxPool", "LpPool")
        },
        "Conv": Form(f"{deep}, float[1, 2, 2, 2, 2] w", "y = Conv(x, w)", filters, OTHER_SHAPE),
        "ConvTranspose": Form(f"{deep}, float[2, 1, 2, 2, 2] w", "y = ConvTranspose(x, w)", turned, OTHER_SHAPE),
        "Resize": Form(flat, f'{scales} y = Resize<mode = "cubic">(x, , s)', FLAT_FEED, OTHER_SHAPE),
        "a batch": Form(f"float[{lines}, 2, 4, 4] x", "y = MaxPool<kernel_shape = [2, 2]>(x)", FLAT_FEED, OTHER_SHAPE),
        "heads": Form(
            f"float[2, 3, 4, 8] q, float[2, 3, 6, 8] k, float[2, 3, 6, {lines}] v",
            "y = Attention(q, k, v)",
            {"q": (2, 3, 4, 8), "k": (2, 3, 6, 8), "v": (2, 3, 6, 10)},
            OTHER_SHAPE,
            opset=23,
        ),
        "groups": Form(
            f"float[1, {lines}, 4, 4] x, float[{lines}, 1, 2, 2] w",
            f"y = Conv<group = {lines}>(x, w)",
            {"x": (1, 8, 4, 4), "w": (8, 1, 2, 2)},
            OTHER_SHAPE,
        ),
        "terms of a sum": Form(
            f"uint8[3, {lines}] x, uint8[{lines}, 3] w",
            "y = MatMulInteger(x, w)",
            {"x": (3, 4), "w": (4, 3)},
            OTHER_SHAPE,
            result="int32",
            kinds=BYTES,
        ),
        "a vector of sizes": Form(f"int64[{lines}] s", "y = ConstantOfShape(s)", {"s": sizes(2, 3)}, OTHER_SHAPE),
    }


def resize(mode: str, *wanted: int) -> Form:
    nodes = f'y = Resize<mode = "{mode}">(x, , , s)'
    return Form("float[1, 1, 2, 2] x, int64[4] s", nodes, {"x": (1, 1, 2, 2), "s": sizes(*wanted)}, NO_MEMORY)


FED = {
    "Resize by linear sums": resize("linear", 1, 1, MANY, 256),
    "Resize to the nearest": resize("nearest", 1, 1, MANY, 256),
    "Resize by cubic sums to 2^31 - 1": resize("cubic", 1, 1, 2**31 - 1, 3),
    "Resize, where the tables are larger than the result": resize("cubic", 1, 1, MANY, 1),
    "AffineGrid": Form(
        "float[1, 2, 3] t, int64[4] s", "y = AffineGrid(t, s)", {"t": (1, 2, 3), "s": sizes(1, 1, MANY, 256)}, NO_MEMORY
    ),
    "AffineGrid of one row": Form(
        "float[1, 2, 3] t, int64[4] s", "y = AffineGrid(t, s)", {"t": (1, 2, 3), "s": sizes(1, 0, 1, 2**31)}, NO_MEMORY
    ),
    "Range": Form(
        "int16 a, int16 b, int16 c",
        "l = Cast<to = 7>(a) m = Cast<to = 7>(c) b7 = Cast<to = 7>(b) n = Mul(b7, b7) y = Range(l, n, m)",
        {"a": number(0, np.int16), "b": number(32000, np.int16), "c": number(1, np.int16)},
        NO_MEMORY,
        result="int64",
    ),
    "ConstantOfShape": Form("int64[1] s", "y = ConstantOfShape(s)", {"s": sizes(2**40)}, NO_MEMORY),
    "Tile": Form("float[2] x, int64[1] s", "y = Tile(x, s)", {"x": (2,), "s": sizes(2**34)}, NO_MEMORY),
    "Pad": Form(
        "float[2, 2] x, int64[4] s",
        'y = Pad<mode = "edge">(x, s)',
        {"x": (2, 2), "s": sizes(2**31, 0, 0, 4)},
        NO_MEMORY,
    ),
    "OneHot": Form(
        "int64[2] x, int64 d, float[2] v",
        "y = OneHot(x, d, v)",
        {"x": sizes(1, 2), "d": number(2**34), "v": (2,)},
        NO_MEMORY,
    ),
    "HannWindow": Form("int64 n", "y = HannWindow(n)", {"n": number(2**33)}, NO_MEMORY),
    "CenterCropPad": Form(
        "float[2, 2] x, int64[2] s", "y = CenterCropPad(x, s)", {"x": (2, 2), "s": sizes(2**31, 9)}, NO_MEMORY
    ),
    "STFT": Form(
        "float[1, 1000000] x, int64 s, int64 l",
        "y = STFT(x, s, , l)",
        {"x": (1, 1_000_000), "s": number(1), "l": number(400_000)},
        NO_MEMORY,
    ),
    "RelativePositionBias": Form(
        "float[32, 4] x, int64 a, int64 b",
        "y = com.microsoft.RelativePositionBias<max_distance = 8>(x, a, b)",
        {"x": (32, 4), "a": number(200_000), "b": number(200_000)},
        NO_MEMORY,
    ),
    "CropAndResize": Form(
        "float[1, 1, 3, 3] x, float[1, 4] r, int32[1] i, int32[2] s",
        "y = com.microsoft.CropAndResize(x, r, i, s)",
        {**SMALL, "r": (1, 4), "i": number(0, np.int32).reshape(1), "s": np.array([100_000, 1_000_000], np.int32)},
        NO_MEMORY,
    ),
}

STATED = {
    "ConvInteger, a pad of 10^9": Form(
        "uint8[1, 1, 3, 3] x, uint8[2, 1, 2, 2] w",
        f"y = ConvInteger<pads = [{BILLION}, 1, 1, 1]>(x, w)",
        {**SMALL, "w": (2, 1, 2, 2)},
        f"{PADDING}|{NO_MEMORY}",
        result="int32",
        kinds=BYTES,
    ),
    "ConvInteger, a pad and a stride": Form(
        "uint8[1, 1, 3, 3] x, uint8[2, 1, 2, 2] w",
        f"y = ConvInteger<pads = [{MANY}, 1, 1, 1], strides = [{MANY}, 1]>(x, w)",
        {**SMALL, "w": (2, 1, 2, 2)},
        PADDING,
        result="int32",
        kinds=BYTES,
    ),
    "MaxPool, a pad of a million": Form(
        "uint8[1, 1, 5, 5] x",
        "y = MaxPool<kernel_shape = [5, 5], pads = [2, 2, 2, 1000000]>(x)",
        {"x": (1, 1, 5, 5)},
        "",
        result="uint8",
        kinds=BYTES,
    ),
    "MaxPool, a pad and a stride": Form(
        "float[1, 1, 3, 3] x",
        f"y = MaxPool<kernel_shape = [2, 2], strides = [{BILLION}, 1], pads = [{BILLION}, 1, 1, 1]>(x)",
        SMALL,
        PADDING,
    ),
    **{
        f"{name} of a kernel far larger than its input": Form(
            "float[1, 1, 3, 3] x", f"y = {name}<kernel_shape = [{MANY + 1}, 2], pads = [{MANY}, 1, 1, 1]>(x)", SMALL, ""
        )
        for name in ("MaxPool", "AveragePool", "LpPool")
    },
    "Add of opset 6, a negative axis": Form(
        "double[2, 3] a, double[1, 3] b",
        "y = Add<broadcast = 1, axis = -2147483648>(a, b)",
        {"a": (2, 3), "b": (1, 3)},
        "axis -2147483648",
        result="double",
        opset=6,
        kinds={"a": np.float64, "b": np.float64},
    ),
    "Add of opset 6, an axis behind the last": Form(
        "double[2, 3] a, double[3] b",
        "y = Add<broadcast = 1, axis = 2>(a, b)",
        {"a": (2, 3), "b": (3,)},
        "axis 2",
        result="double",
        opset=6,
        kinds={"a": np.float64, "b": np.float64},
    ),
    "MaxUnpool": Form(
        "float[1, 1, 2, 2] x, int64[1, 1, 2, 2] i",
        f"y = MaxUnpool<kernel_shape = [{2 * BILLION}, 2], strides = [{2 * BILLION}, 2]>(x, i)",
        {"x": (1, 1, 2, 2), "i": np.zeros((1, 1, 2, 2), np.int64)},
        NO_MEMORY,
    ),
    "targets of trees": Form(
        "float[2, 3] x",
        f'y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = {BILLION}, nodes_featureids = [0], nodes_modes = ["LEAF"], '
        "nodes_nodeids = [0], nodes_treeids = [0], nodes_values = [0.0], nodes_truenodeids = [0], "
        "nodes_falsenodeids = [0], target_ids = [0], target_nodeids = [0], target_treeids = [0], "
        "target_weights = [1.0]>(x)",
        {"x": (2, 3)},
        NO_MEMORY,
    ),
    "coordinates of n-grams": Form(
        "int64[1, 4] x",
        'y = TfIdfVectorizer<mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0, '
        f"ngram_counts = [0], ngram_indexes = [{2**33}], pool_int64s = [1]>(x)",
        {"x": sizes(1, 1, 2, 3).reshape(1, 4)},
        NO_MEMORY,
    ),
    "the scores of a long causal Attention": Form(
        "float[1, 1, n, 1] q, float[1, 1, n, 1] k, float[1, 1, n, 1] v",
        "u, , , y = Attention<is_causal = 1>(q, k, v)",
        dict.fromkeys("qkv", (1, 1, 2**18, 1)),
        NO_MEMORY,
        opset=23,
    ),
    "a window of states": Form(
        "float[1, 2, 4] x, float[2, 1, 3] w",
        f"y, z = com.microsoft.CausalConvWithState<state_window = {2**40}>(x, w)",
        {"x": (1, 2, 4), "w": (2, 1, 3)},
        NO_MEMORY,
    ),
    "ConvTranspose of steps that exceed 64 bits": Form(
        "float[1, 1, 3, 3] x, float[1, 4611686018427387904, 2, 2] w",
        "y = ConvTranspose<dilations = [2, 2]>(x, w)",
        {"x": (1, 1, 3, 3), "w": (1, 1, 2, 2)},
        OTHER_SHAPE,
    ),
}

FORMS = {
    **{f"{name}, 4 * 10^7 lines declared": form for name, form in declared(MANY).items()},
    **{f"{name}, 10^9 lines declared": form for name, form in declared(BILLION).items()},
    **{f"{name}, fed": form for name, form in FED.items()},
    **STATED,
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path_factory.mktemp("sizes"))
    yield found
    found.close()


@pytest.mark.parametrize("kernels", ["", "numpy"], ids=["native", "host"])
@pytest.mark.parametrize("name", list(FORMS))
def test_a_size_is_served_or_refused(name: str, kernels: str, sandbox: Sandbox) -> None:
    form = FORMS[name]
    found = sandbox.run(form.model, kernels, form.arrays)
    assert found.typed, found.text
    if form.error:
        assert any(part in found.text for part in form.error.split("|")), found.text
    else:
        assert found.text == ""


def test_tables_that_were_not_made_ahead_are_made_for_a_run() -> None:
    """A line has tables of some hundred bytes, so that those of a million are left to the run."""
    lines = 1_000_000
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 20]> g (float[1, 1, 5, 3] x) => (float[a, b, c, d] y) '
        f'{{ s = Constant<value_ints = [1, 1, {lines}, 3]>() y = Resize<mode = "linear", '
        'coordinate_transformation_mode = "align_corners">(x, , , s) }'
    )
    x = np.arange(15, dtype=np.float32).reshape(1, 1, 5, 3) ** 2
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    places = np.arange(lines) * 4 / (lines - 1)
    for column in range(3):
        expected = np.interp(places, np.arange(5), x[0, 0, :, column].astype(np.float64))
        np.testing.assert_allclose(y[0, 0, :, column], expected, rtol=1e-4, atol=1e-4)
