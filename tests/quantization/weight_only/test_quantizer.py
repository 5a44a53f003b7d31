"""`MatMulNBitsQuantizer`: its models against the float ones, in this engine and in onnxruntime, and what it refuses."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.quantization import matmul_4bits_quantizer, matmul_nbits_quantizer
from sardonyx.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    NVAWQWeightOnlyQuantConfig,
    QuantFormat,
    RTNWeightOnlyQuantConfig,
)
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.weight_only.models import (
    N,
    attributes_of,
    constants_of,
    dequantized,
    model_of,
    product_model,
    product_weight,
    table_model,
    table_of,
    value,
)

METHODS = {
    "default": lambda bits, block: None,
    "rtn": lambda bits, block: RTNWeightOnlyQuantConfig(),
    "k_quant": lambda bits, block: KQuantWeightOnlyQuantConfig(),
    "hqq": lambda bits, block: HQQWeightOnlyQuantConfig(block, bits),
}
FORMATS = {"operator": QuantFormat.QOperator, "pairs": QuantFormat.QDQ}


def quantized(model, **options):
    quantizer = MatMulNBitsQuantizer(model, **options)
    quantizer.process()
    return quantizer.model.model


def run(model, feed, level="ORT_ENABLE_ALL"):
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = getattr(sardonyx.GraphOptimizationLevel, level)
    return sardonyx.InferenceSession(model.SerializeToString(), options).run(None, feed)[0]


def peer_run(model, feed):
    """What onnxruntime makes of it, without optimisation, which rounds activations."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feed)[0]


def operators(model):
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("method", METHODS)
def test_products(method, form, bits, symmetric, dtype):
    """K = 50 is no multiple of the block, N * blocks no multiple of two."""
    rng = np.random.default_rng(bits)
    weight = rng.standard_normal((50, 7)).astype(dtype)
    config = METHODS[method](bits, 32)
    model = quantized(
        product_model(weight),
        bits=bits,
        block_size=32,
        is_symmetric=symmetric,
        quant_format=FORMATS[form],
        algo_config=config,
    )
    onnx.checker.check_model(model)
    expected = ["MatMulNBits"] if form == "operator" else ["DequantizeLinear", "MatMul"]
    assert operators(model) == expected
    real = product_weight(model)
    assert real.shape == weight.shape
    spread = float(weight.max() - weight.min())
    assert np.abs(real - weight).max() <= 1.1 * spread / ((1 << bits) - 1)
    x = rng.standard_normal((3, 50)).astype(dtype)
    wanted = x.astype(np.float64) @ real
    tolerance = (2e-6 if dtype == np.float32 else 2e-3) * np.abs(wanted).max() + 1e-6
    for found in (run(model, {"x": x}, "ORT_DISABLE_ALL"), peer_run(model, {"x": x})):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, atol=tolerance)
    # Dequantised weights of four bits are multiplied by rows rounded to bytes, as in onnxruntime.
    rounded = form == "pairs" and bits == 4
    np.testing.assert_allclose(run(model, {"x": x}), wanted, atol=0.02 * np.abs(wanted).max() if rounded else tolerance)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("method", METHODS)
def test_tables(method, form, bits, symmetric):
    rng = np.random.default_rng(bits)
    table = rng.standard_normal((20, 44)).astype(np.float32)
    model = quantized(
        table_model(table),
        bits=bits,
        block_size=16,
        is_symmetric=symmetric,
        quant_format=FORMATS[form],
        op_types_to_quantize=("Gather",),
        algo_config=METHODS[method](bits, 16),
    )
    onnx.checker.check_model(model)
    if form == "operator":
        assert operators(model) == ["GatherBlockQuantized"]
        real = table_of(model)
    else:
        assert operators(model) == ["DequantizeLinear", "Gather"]
        real = dequantized(model, model.graph.node[0])
    assert np.abs(real - table).max() <= 1.1 * float(table.max() - table.min()) / ((1 << bits) - 1)
    feed = {"ids": np.array([3, 0, 19, 3])}
    for found in (run(model, feed), peer_run(model, feed)):
        np.testing.assert_allclose(found, real[feed["ids"]], rtol=1e-5, atol=1e-6)


def test_names_and_attributes_are_those_of_onnxruntime():
    weight = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    for options, names in (
        ({"bits": 4}, ["w_Q4", "w_scales", "w_zero_points"]),
        ({"bits": 8, "is_symmetric": True}, ["w_Q8", "w_scales"]),
        ({"algo_config": RTNWeightOnlyQuantConfig()}, ["w_Q4G32", "w_scale", "w_zp"]),
        ({"quant_format": QuantFormat.QDQ}, ["w_DQ_Q4", "w_DQ_scales", "w_DQ_zero_points"]),
    ):
        model = quantized(product_model(weight), block_size=32, **options)
        assert list(constants_of(model)) == names or set(constants_of(model)) == set(names)
    (node,) = quantized(product_model(weight), block_size=32, accuracy_level=4).graph.node
    assert node.name == "product_Q4"
    assert attributes_of(node) == {"K": 64, "N": 16, "bits": 4, "block_size": 32, "accuracy_level": 4}
    (node,) = quantized(product_model(weight), block_size=32).graph.node
    assert "accuracy_level" not in attributes_of(node)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", ["rows", "one sign"])
def test_the_default_gives_the_bytes_of_onnxruntime(bits, symmetric, dtype, kind):
    theirs = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    weight = np.random.default_rng(1).standard_normal((72, 9)).astype(dtype)
    weight = np.abs(weight) + dtype(1) if kind == "one sign" else weight
    mine = quantized(product_model(weight), bits=bits, block_size=32, is_symmetric=symmetric)
    other = theirs.MatMulNBitsQuantizer(product_model(weight), bits=bits, block_size=32, is_symmetric=symmetric)
    other.process()
    found, wanted = constants_of(mine), constants_of(other.model.model)
    assert set(found) == set(wanted)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("method", ["rtn", "k_quant"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", ["rows", "one sign", "zeros"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_bytes_of_onnxruntime_on_request(method, dtype, kind, symmetric):
    theirs = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    weight = np.random.default_rng(2).standard_normal((64, 8)).astype(dtype)
    if kind == "one sign":
        weight = np.abs(weight) + dtype(1)
    elif kind == "zeros":
        weight[:, 3] = 0
    options = {"block_size": 32, "is_symmetric": symmetric}
    config = "RTNWeightOnlyQuantConfig" if method == "rtn" else "KQuantWeightOnlyQuantConfig"
    other = theirs.MatMulNBitsQuantizer(product_model(weight), algo_config=getattr(theirs, config)(), **options)
    other.process()
    mine = quantized(
        product_model(weight),
        algo_config=getattr(matmul_nbits_quantizer, config)(),
        extra_options={"OrtCompatible": True},
        **options,
    )
    found, wanted = constants_of(mine), constants_of(other.model.model)
    assert set(found) == set(wanted)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("method", ["rtn", "k_quant"])
def test_blocks_of_one_sign_are_not_cut_off(method):
    """Weights of 1 to 5: a range without zero, and a zero point of at least 0, end at 4."""
    weight = np.linspace(1, 5, 64, dtype=np.float32).reshape(32, 2)
    real = product_weight(quantized(product_model(weight), block_size=16, algo_config=METHODS[method](4, 16)))
    assert np.abs(real - weight).max() <= 0.6 * 5 / 15


def test_ratios_shrink_the_ranges_of_weights_by_name():
    weight = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    whole = constants_of(quantized(product_model(weight), block_size=32, algo_config=RTNWeightOnlyQuantConfig()))
    config = RTNWeightOnlyQuantConfig(ratios={"w": 0.5})
    half = constants_of(quantized(product_model(weight), block_size=32, algo_config=config))
    np.testing.assert_allclose(half["w_scale"], 0.5 * whole["w_scale"], rtol=1e-6)


def two_products(rng):
    nodes = [N("MatMul", ["x", "w"], ["h"], name="first"), N("MatMul", ["h", "v"], ["y"], name="second")]
    constants = {"w": rng.standard_normal((32, 24)).astype(np.float32)}
    constants["v"] = rng.standard_normal((24, 16)).astype(np.float32)
    return model_of(nodes, [value("x", ["n", 32])], constants)


def test_nodes_that_are_excluded_stay_exact():
    model = two_products(np.random.default_rng(0))
    weight = constants_of(model)["w"]
    changed = quantized(model, block_size=16, nodes_to_exclude=["first"])
    assert operators(changed) == ["MatMul", "MatMulNBits"]
    np.testing.assert_array_equal(constants_of(changed)["w"], weight)


def test_nodes_that_are_included():
    rng = np.random.default_rng(0)
    only = quantized(two_products(rng), block_size=16, op_types_to_quantize=(), nodes_to_include=["second"])
    assert operators(only) == ["MatMul", "MatMulNBits"]
    # Beside operators they are added to these, as onnxruntime has it.
    assert operators(quantized(two_products(rng), block_size=16, nodes_to_include=["second"])) == ["MatMulNBits"] * 2


def test_single_nodes_have_their_own_form():
    config = KQuantWeightOnlyQuantConfig(customized_weight_config={"first": {"bits": 8, "scheme": "sym"}})
    model = quantized(two_products(np.random.default_rng(0)), block_size=16, algo_config=config)
    first, second = (attributes_of(node) for node in model.graph.node)
    assert (first["bits"], second["bits"]) == (8, 4)
    assert [len(node.input) for node in model.graph.node] == [3, 4]


def test_what_a_configuration_leaves_open_the_arguments_say():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((32, 8)).astype(np.float32)
    model = quantized(product_model(weight), bits=8, block_size=16, algo_config=RTNWeightOnlyQuantConfig())
    assert attributes_of(model.graph.node[0])["bits"] == 8
    table = rng.standard_normal((32, 32)).astype(np.float32)
    options = {"op_types_to_quantize": ("Gather",), "block_size": 16, "algo_config": KQuantWeightOnlyQuantConfig()}
    assert operators(quantized(table_model(table), **options)) == ["GatherBlockQuantized"]
    config = DefaultWeightOnlyQuantConfig(16, True, bits=2)
    assert attributes_of(quantized(product_model(weight), algo_config=config).graph.node[0])["bits"] == 2


def test_readers_share_what_a_weight_is_stored_as():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 16)).astype(np.float32)
    nodes = [N("MatMul", ["x", "w"], ["h"], name="first"), N("MatMul", ["h", "w"], ["y"], name="second")]
    for form in QuantFormat:
        model = quantized(model_of(nodes, [value("x", ["n", 16])], {"w": weight}), block_size=16, quant_format=form)
        onnx.checker.check_model(model)
        assert len(model.graph.initializer) == 3
        assert operators(model).count("DequantizeLinear") == (form == QuantFormat.QDQ)


def test_weights_with_other_readers_stay():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 16)).astype(np.float32)
    nodes = [N("MatMul", ["x", "w"], ["h"], name="first"), N("Add", ["h", "w"], ["y"], name="sum")]
    model = quantized(model_of(nodes, [value("x", [16, 16])], {"w": weight}), block_size=16)
    np.testing.assert_array_equal(constants_of(model)["w"], weight)
    model = product_model(weight)
    model.graph.output.append(value("w", [16, 16]))
    model = quantized(model, block_size=16)
    np.testing.assert_array_equal(constants_of(model)["w"], weight)


def test_weights_that_callers_could_override_become_constant():
    model = product_model(np.ones((16, 4), np.float32))
    model.graph.input.append(value("w", [16, 4]))
    changed = quantized(model, block_size=16)
    assert [one.name for one in changed.graph.input] == ["x"]


def test_weights_of_constant_nodes_and_bodies():
    rng = np.random.default_rng(0)
    weight, inner = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    held = N("Constant", [], ["w"], value=numpy_helper.from_array(weight))
    branches = {
        name: onnx.helper.make_graph(
            [N("MatMul", ["h", source], [f"{name}_y"], name=f"inner_{name}")],
            name,
            [],
            [value(f"{name}_y", None)],
            [numpy_helper.from_array(inner, "v")] if source == "v" else [],
        )
        for name, source in (("then", "v"), ("else", "w"))
    }
    nodes = [held, N("MatMul", ["x", "w"], ["h"], name="outer")]
    nodes.append(N("If", ["c"], ["y"], name="choice", then_branch=branches["then"], else_branch=branches["else"]))
    inputs = [value("x", ["n", 16]), value("c", [], TensorProto.BOOL)]
    before = model_of(nodes, inputs, {})
    x = rng.standard_normal((2, 16)).astype(np.float32)
    for form in QuantFormat:
        model = onnx.ModelProto()
        model.CopyFrom(before)
        model = quantized(model, bits=8, block_size=16, quant_format=form)
        onnx.checker.check_model(model)
        for choice in (True, False):
            feed = {"x": x, "c": np.array(choice)}
            wanted = x.astype(np.float64) @ weight @ (inner if choice else weight)
            np.testing.assert_allclose(run(model, feed), wanted, atol=0.02 * np.abs(wanted).max())


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("opset", [11, 17])
def test_weights_of_matrices_with_dimensions_of_one(rank, form, opset):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((1, 32, 5)).astype(np.float32)
    model = product_model(weight, rank)
    model.opset_import[0].version = opset
    model = quantized(model, bits=8, block_size=16, quant_format=FORMATS[form])
    x = rng.standard_normal((*[2] * (rank - 1), 32)).astype(np.float32)
    wanted = x.astype(np.float64) @ weight
    for found in (run(model, {"x": x}), peer_run(model, {"x": x})):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=0.02 * np.abs(wanted).max())


def test_batches_of_matrices():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3, 32, 5)).astype(np.float32)
    with pytest.raises(InvalidQuantization, match=r"a batch of matrices, which QuantFormat\.QDQ can hold"):
        quantized(product_model(weight), block_size=16)
    model = quantized(product_model(weight), bits=8, block_size=16, quant_format=QuantFormat.QDQ)
    x = rng.standard_normal((2, 32)).astype(np.float32)
    wanted = x.astype(np.float64) @ weight
    np.testing.assert_allclose(run(model, {"x": x}), wanted, atol=0.02 * np.abs(wanted).max())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_one_scale_a_column(form, symmetric):
    weight = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    options = {"channel_wised_quantize": True, "is_symmetric": symmetric, "quant_format": FORMATS[form]}
    model = quantized(product_model(weight), **options)
    scales = next(array for name, array in constants_of(model).items() if name.endswith("scales"))
    assert all(len(np.unique(column)) == 1 for column in scales.reshape(6, -1 if form == "operator" else 1))
    assert np.abs(product_weight(model) - weight).max() <= 0.6 * (weight.max() - weight.min()) / 15 * (1 + symmetric)


def test_blocks_along_another_axis_of_a_table():
    table = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    options = {"op_types_to_quantize": ("Gather",), "quant_axes": (("Gather", 0),), "block_size": 16}
    model = quantized(table_model(table), **options)
    assert constants_of(model)["t_scales"].shape == (3, 6)
    assert attributes_of(model.graph.node[0])["quantize_axis"] == 0
    feed = {"ids": np.array([39, 2])}
    np.testing.assert_allclose(run(model, feed), table_of(model)[feed["ids"]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(peer_run(model, feed), table_of(model)[feed["ids"]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("bits", "opset"), [(4, 21), (8, 21), (2, 25)])
def test_pairs_raise_the_operator_set(bits, opset):
    """A reduction whose axes are an attribute in the old set, and an input in the new one."""
    weight = np.random.default_rng(0).standard_normal((32, 5)).astype(np.float32)
    nodes = [
        N("MatMul", ["x", "w"], ["h"], name="product"),
        N("ReduceMean", ["h"], ["y"], name="mean", axes=[1], keepdims=0),
    ]
    model = model_of(nodes, [value("x", ["n", 32])], {"w": weight})
    model = quantized(model, bits=bits, block_size=16, quant_format=QuantFormat.QDQ)
    onnx.checker.check_model(model)
    assert model.opset_import[0].version == opset
    x = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    real = product_weight(model)
    wanted = (x.astype(np.float64) @ real).mean(axis=1)
    np.testing.assert_allclose(run(model, {"x": x}, "ORT_DISABLE_ALL"), wanted, atol=1e-5)


def test_files(tmp_path):
    """The model of a path, whose weights lie in another file; the result is whole without that."""
    weight = np.random.default_rng(0).standard_normal((128, 40)).astype(np.float32)
    other = np.random.default_rng(1).standard_normal((40, 40)).astype(np.float32)
    nodes = [N("MatMul", ["x", "w"], ["h"], name="first"), N("MatMul", ["h", "v"], ["y"], name="second")]
    model = model_of(nodes, [value("x", ["n", 128])], {"w": weight, "v": other})
    source, target = tmp_path / "float.onnx", tmp_path / "few.onnx"
    onnx.save_model(model, source, save_as_external_data=True, location="weights", size_threshold=0)
    quantizer = MatMulNBitsQuantizer(str(source), block_size=32, nodes_to_exclude=["second"])
    quantizer.process()
    (tmp_path / "weights").unlink()
    quantizer.model.save_model_to_file(str(target), True)
    held = constants_of(onnx.load(target))
    np.testing.assert_array_equal(held["v"], other)
    assert held["w_Q4"].shape == (40, 4, 16)
    x = np.ones((1, 128), np.float32)
    found = sardonyx.InferenceSession(str(target)).run(None, {"x": x})[0]
    assert np.isfinite(found).all()


def test_a_message_is_changed_and_a_file_is_not(tmp_path):
    model = product_model(np.ones((16, 4), np.float32))
    onnx.save(model, tmp_path / "m.onnx")
    before = (tmp_path / "m.onnx").read_bytes()
    quantized(tmp_path / "m.onnx", block_size=16)
    assert (tmp_path / "m.onnx").read_bytes() == before
    quantizer = MatMulNBitsQuantizer(model, block_size=16)
    assert operators(quantizer.model.model) == ["MatMul"]
    quantizer.process()
    assert quantizer.model.model is model
    assert operators(model) == ["MatMulNBits"]


class Reader:
    def __init__(self, feeds):
        self._feeds = iter(feeds)

    def get_next(self):
        return next(self._feeds, None)


def correlated_feeds(rng, size, count=8):
    mixing = rng.standard_normal((4, size))
    return [
        {"x": (rng.standard_normal((32, 4)) @ mixing + 0.2 * rng.standard_normal((32, size))).astype(np.float32)}
        for _ in range(count)
    ]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("options", [{}, {"actorder": True}, {"mse": True}, {"perchannel": False}], ids=str)
def test_gptq_with_a_reader(form, options):
    """Two products that read the input, one that reads a computed value: each has less of an error than rounding."""
    rng = np.random.default_rng(0)
    nodes = [
        N("MatMul", ["x", "w"], ["a"], name="first"),
        N("MatMul", ["x", "v"], ["b"], name="second"),
        N("Add", ["a", "b"], ["h"], name="sum"),
        N("MatMul", ["h", "u"], ["y"], name="third"),
    ]
    sizes = {"w": (64, 32), "v": (64, 32), "u": (32, 24)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    before = model_of(nodes, [value("x", ["n", 64])], constants)
    feeds = correlated_feeds(rng, 64)
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    read = {"w": x, "v": x, "u": x @ constants["w"] + x @ constants["v"]}

    def errors_of(config):
        model = onnx.ModelProto()
        model.CopyFrom(before)
        model = quantized(model, block_size=32, algo_config=config, quant_format=FORMATS[form])
        kind = "MatMulNBits" if form == "operator" else "DequantizeLinear"
        holders = [node for node in model.graph.node if node.op_type == kind]
        assert len(holders) == 3
        found = {}
        for node in holders:
            name = node.input[1 if form == "operator" else 0].split("_")[0]
            off = product_weight(model, node) - constants[name]
            found[name] = np.square(read[name] @ off).mean()
        return found

    ours = errors_of(GPTQWeightOnlyQuantConfig(Reader(feeds), **options))
    nearest = errors_of(None)
    limit = 1.0 if options == {"perchannel": False} else 0.5
    assert all(ours[name] < limit * nearest[name] for name in sizes), (ours, nearest)


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (None, "GPTQ needs calibration data"),
        (Reader([]), "gives no data"),
        (Reader([3]), "must give dicts"),
        (Reader([{"x": np.full((2, 64), np.nan, np.float32)}]), "NaN or infinite numbers of 'x'"),
        (Reader([{"x": np.zeros((0, 64), np.float32)}]), "no vectors of 'x'"),
    ],
)
def test_gptq_refuses_data_that_do_not_fit(reader, message):
    with pytest.raises(InvalidQuantization, match=message):
        quantized(product_model(np.ones((64, 8), np.float32)), algo_config=GPTQWeightOnlyQuantConfig(reader))


def test_what_is_refused():
    model = product_model(np.ones((64, 8), np.float32))
    for options, message in (
        ({"bits": 3}, "bits must be 2, 4 or 8, not 3"),
        ({"block_size": 48}, "blocks of 48 have no form of QuantFormat.QOperator"),
        ({"block_size": 0}, "block_size must be a positive whole number"),
        ({"accuracy_level": 7}, "accuracy_level must be a whole number from 0 to 4"),
        ({"nodes_to_exclude": ["produkt"]}, "matches no node.*Did you mean product"),
        ({"nodes_to_include": ["nothing"]}, "nodes_to_include = nothing matches no node"),
        ({"nodes_to_exclude": "product"}, "must be a list of names"),
        ({"nodes_to_exclude": ["product"]}, "No node of the model can be quantised"),
        ({"op_types_to_quantize": ("Conv",)}, "weights of Conv cannot be quantised alone"),
        ({"op_types_to_quantize": ("Gather",)}, "op_types_to_quantize = Gather matches no node"),
        ({"op_types_to_quantize": ()}, "is empty, and nodes_to_include names no nodes"),
        ({"quant_axes": (("MatMul", 1),)}, "lie along axis 0"),
        ({"quant_format": "QLinear"}, "quant_format must be"),
        ({"algo_config": "rtn"}, "algo_config must be a configuration"),
        ({"extra_options": {"Unknown": 1}}, "there is no option 'Unknown'"),
        ({"extra_options": {"UseQDQContribOps": True}}, "com.microsoft has no blocks"),
    ):
        with pytest.raises(InvalidQuantization, match=message):
            quantized(model, **options)
    assert operators(model) == ["MatMul"]  # nothing was changed on the way
    config = RTNWeightOnlyQuantConfig(customized_weight_config={"product": {"width": 8}})
    with pytest.raises(InvalidQuantization, match="there is no key 'width'"):
        quantized(model, algo_config=config)
    with pytest.raises(InvalidQuantization, match="axis must be 1"):
        HQQWeightOnlyQuantConfig(axis=0)
    with pytest.raises(errors.NotImplemented, match="nvidia-modelopt"):
        NVAWQWeightOnlyQuantConfig("somewhere")
    with pytest.raises(errors.NoSuchFile):
        MatMulNBitsQuantizer("nowhere.onnx")
    weight = np.ones((64, 8), np.float32)
    weight[3, 3] = np.nan
    with pytest.raises(InvalidQuantization, match="Weight 'w' holds NaN"):
        quantized(product_model(weight))
    with pytest.raises(InvalidQuantization, match="its weight is a vector"):
        quantized(product_model(np.ones(64, np.float32)))
    with pytest.raises(InvalidQuantization, match=r"not of float32 or float16|reads no float32"):
        quantized(product_model(np.ones((64, 8), np.float64)))


def test_a_quantised_model_is_refused():
    model = quantized(product_model(np.ones((64, 8), np.float32)))
    with pytest.raises(InvalidQuantization, match="quantised already: it has MatMulNBits"):
        quantized(model)


def test_what_is_left_is_logged(caplog):
    rng = np.random.default_rng(0)
    nodes = [N("MatMul", ["x", "w"], ["h"], name="first"), N("MatMul", ["h", "h"], ["y"], name="second")]
    model = model_of(nodes, [value("x", [16, 16])], {"w": rng.standard_normal((16, 16)).astype(np.float32)})
    with caplog.at_level(logging.INFO, "sardonyx.quantization"):
        quantized(model, block_size=16)
    assert any("MatMul second stays as it is: its weight is no constant" in one for one in caplog.messages)
    assert any("MatMul first: 4 bits, blocks of 16" in one for one in caplog.messages)


def test_older_names():
    model = product_model(np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32))
    quantizer = matmul_4bits_quantizer.MatMul4BitsQuantizer(model, 32, True)
    quantizer.process()
    (node,) = quantizer.model.model.graph.node
    assert (attributes_of(node)["bits"], attributes_of(node)["block_size"], len(node.input)) == (4, 32, 3)


def test_the_command_line(tmp_path):
    onnx.save(product_model(np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)), tmp_path / "m.onnx")
    arguments = ["--input_model", str(tmp_path / "m.onnx"), "--output_model", str(tmp_path / "q.onnx")]
    more = ["--bits", "8", "--symmetric", "False", "--quant_method", "k_quant", "--quant_axes", "MatMul:0"]
    matmul_nbits_quantizer.main([*arguments, *more, "--block_size", "16"])
    (node,) = onnx.load(tmp_path / "q.onnx").graph.node
    assert (attributes_of(node)["bits"], len(node.input)) == (8, 4)
