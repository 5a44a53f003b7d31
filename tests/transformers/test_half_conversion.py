"""Models of float32 as models of float16, run here and in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.api.explaining.explanation import explain
from sardonyx.transformers.float16 import convert_float_to_float16
from tests.transformers.small_models import bert

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
RNG = np.random.default_rng(11)


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    return model


def runs_in(engine, model, feeds):
    options = engine.SessionOptions()
    options.log_severity_level = 4
    if hasattr(options, "intra_op_num_threads"):
        options.intra_op_num_threads = 1
    session = engine.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kinds = {item.name: item.type for item in session.get_inputs()}
    given = {
        name: array.astype(np.float16) if kinds[name] == "tensor(float16)" else array for name, array in feeds.items()
    }
    return session.run(None, given)


def check(before, after, feeds, atol=2e-2):
    """The converted model is valid, and gives nearly the same results here and in onnxruntime."""
    onnx.checker.check_model(after, full_check=all(node.domain == "" for node in after.graph.node))
    wanted = runs_in(sardonyx, before, feeds)
    engines = [sardonyx, pytest.importorskip("onnxruntime")]
    for engine in engines:
        for ours, theirs in zip(runs_in(engine, after, feeds), wanted, strict=True):
            np.testing.assert_allclose(np.float64(ours), np.float64(theirs), rtol=1e-2, atol=atol)


def element(infos, name):
    return next(info.type.tensor_type.elem_type for info in infos if info.name == name)


def weight_type(model, name):
    return next(tensor.data_type for tensor in model.graph.initializer if tensor.name == name)


def operators(model):
    return [node.op_type for node in model.graph.node]


MLP = "g (float[n, 4] x) => (float[n, 3] y) { h = MatMul(x, w) r = Relu(h) y = Add(r, b) }"


def mlp():
    weights = {"w": RNG.standard_normal((4, 3)).astype(np.float32), "b": RNG.standard_normal(3).astype(np.float32)}
    return model_of(MLP, **weights), {"x": RNG.standard_normal((5, 4)).astype(np.float32)}


def test_everything_becomes_half():
    model, feeds = mlp()
    after = convert_float_to_float16(model)
    assert element(after.graph.input, "x") == element(after.graph.output, "y") == HALF
    assert weight_type(after, "w") == weight_type(after, "b") == HALF
    assert operators(after) == ["MatMul", "Relu", "Add"]
    assert weight_type(model, "w") == FLOAT  # the model that was given stays as it is
    check(model, after, feeds)


@pytest.mark.parametrize("keep", [True, ["x"], ["y"], "y", ["x", "y", "unknown"]])
def test_inputs_and_outputs_may_stay(keep):
    model, feeds = mlp()
    after = convert_float_to_float16(model, keep_io_types=keep)
    named = ["x", "y"] if keep is True else [keep] if isinstance(keep, str) else keep
    assert element(after.graph.input, "x") == (FLOAT if "x" in named else HALF)
    assert element(after.graph.output, "y") == (FLOAT if "y" in named else HALF)
    names = [node.name for node in after.graph.node if node.op_type == "Cast"]
    wanted = [name for name, kept in (("graph_input_cast0", "x"), ("graph_output_cast0", "y")) if kept in named]
    assert names == wanted
    check(model, after, feeds)


def test_the_names_of_casts_are_those_of_onnxruntime():
    theirs = pytest.importorskip("onnxruntime.transformers.float16")
    model, _ = mlp()
    options = {"keep_io_types": True, "op_block_list": ["Relu"]}
    ours = convert_float_to_float16(model, **options)
    peer = theirs.convert_float_to_float16(model, **options)

    def casts(found):
        return {
            (node.name, *node.input) for node in found.graph.node if node.op_type == "Cast" and node.output[0] != "r"
        }

    assert casts(ours) - {("r_cast_to_fp16_node", "r")} == casts(peer)


def test_blocked_nodes_stay_in_single_precision():
    model, feeds = mlp()
    by_operator = convert_float_to_float16(model, op_block_list=["Relu"])
    by_name = convert_float_to_float16(model, node_block_list=["n1"])
    assert by_operator == by_name
    assert operators(by_operator) == ["MatMul", "Cast", "Relu", "Cast", "Add"]
    check(model, by_operator, feeds)


def test_a_value_that_several_blocked_nodes_read_is_cast_once_and_goes_between_them_unrounded():
    text = "g (float[n] x) => (float[n] y) { a = Abs(x) b = Min(a, a) c = Max(a, b) d = Min(b, c) y = Neg(d) }"
    model = model_of(text)
    after = convert_float_to_float16(model)
    assert operators(after) == ["Abs", "Cast", "Min", "Max", "Min", "Cast", "Neg"]
    check(model, after, {"x": np.float32([1, -2, 3])})


def test_weights_of_single_precision_nodes_stay_exact_unless_forced():
    weights = {"w": np.float32([1 / 3, 1e-3]), "v": np.float32([1 / 3, 2.0])}
    model = model_of("g (float[2] x) => (float[2] y) { a = Min(x, w) b = Mul(a, v) y = Max(b, v) }", **weights)
    feeds = {"x": np.float32([5, 7])}
    after = convert_float_to_float16(model)
    assert (weight_type(after, "w"), weight_type(after, "v")) == (FLOAT, HALF)
    forced = convert_float_to_float16(model, force_fp16_initializers=True)
    assert weight_type(forced, "w") == HALF
    for converted in (after, forced):
        check(model, converted, feeds)


def test_numbers_of_weights_are_clipped():
    model = model_of("g (float[3] x) => (float[3] y) { y = Mul(x, w) }", w=np.float32([1e-9, 1e9, -1e9]))
    after = convert_float_to_float16(model, min_positive_val=1e-4, max_finite_val=1000.0)
    assert numpy_helper.to_array(after.graph.initializer[0]).tolist() == [np.float16(1e-4), 1000, -1000]
    with pytest.raises(ValueError, match="max_finite_val=100000"):
        convert_float_to_float16(model, max_finite_val=100000)
    with pytest.raises(ValueError, match=r"min_positive_val=1e-09"):
        convert_float_to_float16(model, min_positive_val=1e-9)


SCALED = """g (float[1, 2, 3, 3] x) => (float[1, 2, h, w] y) {
  a = Relu(x) s = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> () y = Resize <mode = "nearest"> (a, , s) }"""


def test_inputs_that_are_always_float_stay():
    model = model_of(SCALED)
    feeds = {"x": RNG.standard_normal((1, 2, 3, 3)).astype(np.float32)}
    after = convert_float_to_float16(model)
    scales = after.graph.node[1]
    assert scales.attribute[0].t.data_type == FLOAT
    assert "Cast" not in operators(after)
    check(model, after, feeds)
    forced = convert_float_to_float16(model, force_fp16_inputs={"Resize": [2]})
    assert forced.graph.node[1].attribute[0].t.data_type == HALF


def test_operators_without_half_stay_in_single_precision():
    text = """g (float[n, 4] x) => (float[n, 4] y) {
      r = Relu(x) q, s, z = DynamicQuantizeLinear(r) d = DequantizeLinear(q, s, z) y = Neg(d) }"""
    model = model_of(text)
    model.opset_import[0].version = 13
    after = convert_float_to_float16(model)
    assert operators(after) == ["Relu", "Cast", "DynamicQuantizeLinear", "DequantizeLinear", "Cast", "Neg"]
    check(model, after, {"x": RNG.standard_normal((2, 4)).astype(np.float32)}, atol=0.1)


def test_sums_of_integers_are_scaled_in_single_precision():
    text = """g (float[n, 2048] x) => (float[n, 3] y) {
      a = Relu(x) q, s, z = DynamicQuantizeLinear(a) i = MatMulInteger(q, w, z, wz) f = Cast <to = 1> (i)
      t = Mul(s, ws) m = Mul(f, t) y = Add(m, b) }"""
    weights = {"w": RNG.integers(0, 255, (2048, 3)).astype(np.uint8), "wz": np.uint8(3), "ws": np.float32(1e-6)}
    model = model_of(text, **weights, b=np.float32([1, 2, 3]))
    after = convert_float_to_float16(model)
    assert operators(after)[-3:] == ["Mul", "Cast", "Add"]
    assert weight_type(after, "ws") == FLOAT
    feeds = {"x": RNG.uniform(1, 2, (2, 2048)).astype(np.float32)}
    check(model, after, feeds)
    model.graph.output.append(helper.make_tensor_value_info("i", TensorProto.INT32, ["n", 3]))
    assert np.abs(runs_in(sardonyx, model, feeds)[1]).max() > 65504


def test_results_of_another_type_are_asked_for():
    text = """g (int64[n] i) => (float[n] y) {
      f = Cast <to = 1> (i) s = Shape(i) z = ConstantOfShape(s) o = ConstantOfShape <value = float[1] {2.0}> (s)
      c = Constant <value_float = 0.25> () v = Constant <value_floats = [1.5]> () a = Add(f, z)
      b = Mul(a, o) d = Add(b, c) y = Add(d, v) }"""
    model = model_of(text)
    after = convert_float_to_float16(model)
    assert after.graph.node[0].attribute[0].i == HALF
    assert operators(after) == operators(model)
    check(model, after, {"i": np.arange(4)})


BRANCH = """g (bool c, float[2] x) => (float[2] y) {
  h = Mul(x, w)
  z = If (c) <
    then_branch = yes () => (float[2] t) { m = Min(h, w) t = Add(m, h) },
    else_branch = no () => (float[2] e) { k = Constant <value = float[2] {0.5, 0.25}> () e = Sub(h, k) }
  >
  y = Neg(z) }"""


@pytest.mark.parametrize("blocked", [(), ("n1",)], ids=["converted", "blocked"])
@pytest.mark.parametrize("condition", [True, False])
def test_branches_are_converted_with_what_they_read_from_outside(blocked, condition):
    model = model_of(BRANCH, w=np.float32([2.0, 3.0]))
    after = convert_float_to_float16(model, node_block_list=blocked)
    inside = {
        attribute.name: [node.op_type for node in attribute.g.node]
        for node in after.graph.node
        for attribute in node.attribute
        if attribute.name.endswith("branch")
    }
    casts = sorted(name for name, found in inside.items() if "Cast" in found)
    assert casts == (["else_branch", "then_branch"] if blocked else ["then_branch"])
    check(model, after, {"c": np.array(condition), "x": np.float32([1.5, -2.0])})


LOOP = """g (int64 n, float[2] x) => (float[2] y) {
  t = Constant <value = bool {1}> ()
  y = Loop (n, t, x) <body = b (int64 i, bool k, float[2] s) => (bool q, float[2] r) {
    q = Identity(k) m = Max(s, w) r = Mul(m, w) }> }"""


@pytest.mark.parametrize("blocked", [(), ("n1",)], ids=["converted", "blocked"])
def test_loops_carry_what_their_bodies_take(blocked):
    model = model_of(LOOP, w=np.float32([1.5, 0.5]))
    after = convert_float_to_float16(model, keep_io_types=True, node_block_list=blocked)
    body = next(attribute.g for node in after.graph.node for attribute in node.attribute if attribute.name == "body")
    assert body.input[2].type.tensor_type.elem_type == (FLOAT if blocked else HALF)
    check(model, after, {"n": np.array(3), "x": np.float32([1.0, 2.0])})


def test_blocked_nodes_may_compute_in_bfloat16():
    model, feeds = mlp()
    after = convert_float_to_float16(model, node_block_list=["n0"], use_bfloat16_as_blocked_nodes_dtype=True)
    assert weight_type(after, "w") == TensorProto.BFLOAT16
    assert weight_type(after, "b") == HALF
    onnx.checker.check_model(after, full_check=True)
    wanted = runs_in(sardonyx, model, feeds)[0]
    np.testing.assert_allclose(np.float32(runs_in(sardonyx, after, feeds)[0]), wanted, rtol=3e-2, atol=5e-2)
    model.opset_import[0].version = 12
    with pytest.raises(errors.InvalidArgument, match="opset 12, and bfloat16 is known from opset 13"):
        convert_float_to_float16(model, use_bfloat16_as_blocked_nodes_dtype=True)


def test_sequences_are_converted_whole_or_not_at_all():
    text = """g (float[2] x) => (float[4] y) { a = Abs(x) s = SequenceConstruct(x, a)
      y = ConcatFromSequence <axis = 0> (s) }"""
    model = model_of(text)
    after = convert_float_to_float16(model)
    check(model, after, {"x": np.float32([1, -2])})
    with pytest.raises(errors.Fail, match=r"\(n2\) Op \(ConcatFromSequence\) takes the sequence s in fp32"):
        convert_float_to_float16(model, node_block_list=["n2"])
    both = convert_float_to_float16(model, node_block_list=["n1", "n2"])
    check(model, both, {"x": np.float32([1, -2])})


def test_weights_that_a_caller_may_override():
    model, feeds = mlp()
    model.graph.input.append(helper.make_tensor_value_info("b", FLOAT, [3]))
    after = convert_float_to_float16(model)
    assert element(after.graph.input, "b") == weight_type(after, "b") == HALF
    kept = convert_float_to_float16(model, keep_io_types=["b"])
    assert element(kept.graph.input, "b") == weight_type(kept, "b") == FLOAT
    for converted in (after, kept):
        check(model, converted, feeds)


def test_nodes_in_any_order_and_functions():
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
      g (float[n] x) => (float[n] y) { h = local.twice(x) y = Min(h, x) }
      <domain: "local", opset_import: ["" : 18]>
      twice (a) => (b) { c = Constant <value = float {2.0}> () b = Mul(a, c) }"""
    model = onnx.parser.parse_model(text)
    feeds = {"x": np.float32([1.5, -2])}
    wanted = runs_in(sardonyx, model, feeds)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    after = convert_float_to_float16(model)
    assert not after.functions
    onnx.checker.check_model(after, full_check=True)
    np.testing.assert_allclose(runs_in(sardonyx, after, feeds)[0], wanted[0], rtol=1e-2)


def test_a_model_by_its_path_with_weights_beside_it(tmp_path):
    model, _ = mlp()
    wanted = convert_float_to_float16(model)
    path = tmp_path / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    for given in (path, str(path)):
        after = convert_float_to_float16(given)
        assert [tensor.raw_data for tensor in after.graph.initializer] == [
            tensor.raw_data for tensor in wanted.graph.initializer
        ]
    with pytest.raises(errors.NoSuchFile, match=r"absent\.onnx"):
        convert_float_to_float16(tmp_path / "absent.onnx")
    with pytest.raises(ValueError, match="Expected an ONNX ModelProto"):
        convert_float_to_float16(b"bytes")
    bare = onnx.load(path, load_external_data=False)
    with pytest.raises(RuntimeError, match=r"external data not loaded! The numbers of [wb]"):
        convert_float_to_float16(bare)


def test_without_inference_the_stated_types_count():
    model, feeds = mlp()
    after = convert_float_to_float16(model, disable_shape_infer=True, op_block_list=["Relu"])
    assert "Cast" not in operators(after)[:2]  # nobody says that h is a float
    inferred = onnx.shape_inference.infer_shapes(model)
    told = convert_float_to_float16(inferred, disable_shape_infer=True, op_block_list=["Relu"])
    assert operators(told) == ["MatMul", "Cast", "Relu", "Cast", "Add"]
    assert element(told.graph.value_info, "h") == HALF
    check(model, told, feeds)


def host_steps(session, feeds):
    return [row.reason for row in explain(session, feeds).rows if row.kind == "host"]


def test_a_transformer_runs_in_half_natively():
    graph, model = bert()
    after = convert_float_to_float16(model, keep_io_types=True)
    check(model, after, graph.feeds, atol=5e-2)
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL
    for settings in (None, options):
        assert host_steps(sardonyx.InferenceSession(after.SerializeToString(), settings), graph.feeds) == []


def test_recurrent_layers_with_constant_biases():
    hidden, width = 4, 3
    shapes = {"W": (2, 4 * hidden, width), "R": (2, 4 * hidden, hidden), "B": (2, 8 * hidden)}
    weights = {name: (RNG.standard_normal(shape) / 2).astype(np.float32) for name, shape in shapes.items()}
    text = 'g (float[s, 2, 3] x) => (float[s, 2, 2, 4] y) { y = LSTM <hidden_size = 4, direction = "bidirectional"> '
    model = model_of(text + "(x, W, R, B) }", **weights)
    after = convert_float_to_float16(model)
    feeds = {"x": RNG.standard_normal((5, 2, width)).astype(np.float32)}
    check(model, after, feeds)
    halves = {"x": feeds["x"].astype(np.float16)}
    assert host_steps(sardonyx.InferenceSession(after.SerializeToString()), halves) == []
