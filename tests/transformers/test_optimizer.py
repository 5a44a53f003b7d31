"""`optimize_model`: what is fused, what options change, and that the results stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.transformers import optimizer
from sardonyx.transformers.fusion_options import AttentionMaskFormat, AttentionOpType, FusionOptions
from sardonyx.transformers.onnx_model_bert import BertOnnxModel
from tests.passes.attention_graphs import HEADS, WIDTH
from tests.transformers.small_models import bert

GRAPH, MODEL = bert()
FEEDS = GRAPH.feeds
FULL = {"EmbedLayerNormalization": 1, "Attention": 2, "BiasGelu": 2, "SkipLayerNormalization": 4}


def counts(model: BertOnnxModel) -> dict[str, int]:
    return {name: count for name, count in model.get_fused_operator_statistics().items() if count}


def run(engine: Any, model: onnx.ModelProto | str, feeds: Any = None) -> list[np.ndarray]:
    options = engine.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = model if isinstance(model, str) else model.SerializeToString()
    session = engine.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    kinds = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
    given = {item.name: (feeds or FEEDS)[item.name].astype(kinds[item.type]) for item in session.get_inputs()}
    return session.run(None, given)


WANTED = run(sardonyx, MODEL)


def check(model: onnx.ModelProto | str, atol: float = 1e-4) -> None:
    """The results are those of the model as it was, here and in onnxruntime."""
    for engine in (sardonyx, pytest.importorskip("onnxruntime")):
        (found,) = run(engine, model)
        np.testing.assert_allclose(np.float32(found), WANTED[0], rtol=0, atol=atol)


def optimized(model: Any = MODEL, model_type: str = "bert", **arguments: Any) -> BertOnnxModel:
    found = optimizer.optimize_model(model, model_type, **arguments)
    assert isinstance(found, BertOnnxModel)
    return found


@pytest.mark.parametrize("level", [None, 0, 1, 2, 99])
def test_every_level_fuses_all_of_a_bert(level: int | None) -> None:
    found = optimized(opt_level=level)
    assert counts(found) == FULL
    assert found.is_fully_optimized()
    assert (found.num_heads, found.hidden_size) == (HEADS, WIDTH)
    check(found.model)


def test_the_counts_are_those_of_onnxruntime(tmp_path: Path) -> None:
    theirs = pytest.importorskip("onnxruntime.transformers.optimizer")
    onnx.save_model(MODEL, tmp_path / "m.onnx")
    peer = theirs.optimize_model(str(tmp_path / "m.onnx"), "bert", num_heads=HEADS, hidden_size=WIDTH)
    wanted, ours = peer.get_fused_operator_statistics(), optimized().get_fused_operator_statistics()
    assert ours.keys() == wanted.keys()
    for kind in ("LayerNormalization", "Gelu", "Attention"):  # fused embeddings hold a normalisation
        there, here = (sum(n for name, n in found.items() if name.endswith(kind)) for found in (wanted, ours))
        assert here >= there
    assert optimizer.MODEL_TYPES.keys() == theirs.MODEL_TYPES.keys()
    for name, (cls, producer, level) in optimizer.MODEL_TYPES.items():
        assert (cls.__name__, producer, level) == (theirs.MODEL_TYPES[name][0].__name__, *theirs.MODEL_TYPES[name][1:])


SWITCHES = {
    "enable_gelu": {"BiasGelu": 0},
    "enable_attention": {"Attention": 0},
    "enable_skip_layer_norm": {"SkipLayerNormalization": 0},
    "enable_layer_norm": {"SkipLayerNormalization": 0, "EmbedLayerNormalization": 0, "LayerNormalization": 0},
    "enable_embed_layer_norm": {"EmbedLayerNormalization": 0},
    "enable_bias_gelu": {"BiasGelu": 0, "Gelu": 2},
}


@pytest.mark.parametrize("option", SWITCHES)
def test_an_option_switches_its_operators_off(option: str) -> None:
    options = FusionOptions("bert")
    setattr(options, option, False)
    found = optimized(optimization_options=options)
    statistics = found.get_fused_operator_statistics()
    assert {name: statistics[name] for name in SWITCHES[option]} == SWITCHES[option]
    check(found.model)


def test_biases_before_residuals_may_stay_outside() -> None:
    options = FusionOptions("bert")
    options.enable_bias_skip_layer_norm = False
    apart, joined = optimized(optimization_options=options), optimized()
    adds = [len(found.get_nodes_by_op_type("Add")) for found in (apart, joined)]
    assert adds == [4, 0]
    check(apart.model)


@pytest.mark.parametrize("way", ["use_multi_head_attention", "attention_op_type"])
def test_attention_may_stay_without_its_projections(way: str) -> None:
    options = FusionOptions("bert")
    setattr(options, way, AttentionOpType.MultiHeadAttention if way == "attention_op_type" else True)
    found = optimized(optimization_options=options)
    assert counts(found)["MultiHeadAttention"] == 2
    assert "Attention" not in counts(found)
    assert (found.num_heads, found.hidden_size) == (HEADS, WIDTH)
    check(found.model)
    options.disable_multi_head_attention_bias = True
    outside = optimized(optimization_options=options)
    biases = [len(model.get_nodes_by_op_type("MultiHeadAttention")[0].input) for model in (found, outside)]
    assert biases[0] >= 4
    nodes = outside.get_nodes_by_op_type("MultiHeadAttention")
    assert all(len(node.input) < 4 or not node.input[3] for node in nodes)
    check(outside.model)


def test_a_mask_that_hides_nothing_may_go_with_its_input() -> None:
    options = FusionOptions("bert")
    options.attention_mask_format = AttentionMaskFormat.NoMask
    found = optimized(optimization_options=options)
    assert [value.name for value in found.model.graph.input] == ["input_ids", "token_type_ids"]
    full = {**FEEDS, "attention_mask": np.ones_like(FEEDS["attention_mask"])}
    np.testing.assert_allclose(run(sardonyx, found.model)[0], run(sardonyx, MODEL, full)[0], atol=1e-4)


def test_gelu_may_be_approximated() -> None:
    options = FusionOptions("bert")
    options.enable_gelu_approximation = True
    found = optimized(optimization_options=options)
    assert counts(found)["FastGelu"] == 2
    assert "BiasGelu" not in counts(found)
    check(found.model, atol=5e-2)


def test_shapes_may_be_left_out() -> None:
    options = FusionOptions("bert")
    options.enable_shape_inference = False
    assert list(optimized(optimization_options=options).model.graph.value_info) == []
    assert len(optimized().model.graph.value_info) > 0


def test_single_steps_do_one_fusion_each() -> None:
    found = BertOnnxModel(MODEL)
    assert counts(found) == {}
    found.fuse_layer_norm()
    assert counts(found) == {"LayerNormalization": 5}
    found.fuse_gelu()
    assert counts(found) == {"LayerNormalization": 5, "Gelu": 2}
    found.fuse_attention()
    assert counts(found) == {"LayerNormalization": 5, "Gelu": 2, "Attention": 2}
    found.fuse_embed_layer()
    found.fuse_skip_layer_norm()
    found.fuse_bias_gelu(is_fastgelu=False)
    assert counts(found) == FULL
    found.fuse_add_bias_skip_layer_norm()
    check(found.model)


def test_sizes_that_are_given_wrong_are_told(caplog: pytest.LogCaptureFixture) -> None:
    found = optimized(num_heads=4, hidden_size=WIDTH)
    assert (found.num_heads, found.hidden_size) == (HEADS, WIDTH)
    assert f"num_heads=4, hidden_size={WIDTH} are given, but attention has {HEADS} heads" in caplog.text
    with pytest.raises(ValueError, match="num_heads=3, hidden_size=8: the heads must divide"):
        optimized(num_heads=3, hidden_size=8)


def test_only_the_rewrites_of_a_session() -> None:
    found = optimized(only_onnxruntime=True, opt_level=1)
    assert counts(found) == {}
    assert len(found.nodes()) < len(MODEL.graph.node)
    check(found.model)
    assert counts(optimized(only_onnxruntime=True, opt_level=2))["SkipLayerNormalization"] == 4


def test_a_file_is_written_as_a_session_rewrites_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(MODEL, path)
    found = optimizer.optimize_by_onnxruntime(str(path), opt_level=1)
    assert found == str(tmp_path / "m_o1_cpu.onnx")
    check(found)
    outside = optimizer.optimize_by_onnxruntime(
        MODEL,
        optimized_model_path=str(tmp_path / "out.onnx"),
        opt_level=2,
        save_as_external_data=True,
        external_data_file_threshold=100,
    )
    assert (tmp_path / "out.onnx.data").stat().st_size > 500
    check(outside)
    fused = onnx.load(outside)
    without = optimizer.optimize_by_onnxruntime(
        str(path), opt_level=2, disabled_optimizers=["SkipLayerNormFusion"], optimized_model_path=outside
    )
    kinds = [{node.op_type for node in model.graph.node} for model in (fused, onnx.load(without))]
    assert [("SkipLayerNormalization" in names) for names in kinds] == [True, False]


def test_a_saved_model_and_its_statistics(tmp_path: Path) -> None:
    found = optimized()
    inside, outside = str(tmp_path / "m.onnx"), str(tmp_path / "deep" / "folder" / "m.onnx")
    found.save_model_to_file(inside)
    found.save_model_to_file(outside, use_external_data_format=True, size_threshold=100)
    assert Path(f"{outside}.data").stat().st_size > 1000
    for path in (inside, outside):
        assert {name: n for name, n in optimizer.get_fusion_statistics(path).items() if n} == FULL
        check(path)
    check(found.model)  # whose weights are still there
    assert found.model.producer_name == "sardonyx.transformers"
    assert found.model.producer_version == sardonyx.__version__


def test_half_precision_after_fusion() -> None:
    found = optimized()
    found.convert_float_to_float16(use_symbolic_shape_infer=True)
    assert counts(found) == FULL
    assert found.use_float16()
    kinds = {value.name: value.type.tensor_type.elem_type for value in found.model.graph.output}
    assert set(kinds.values()) == {TensorProto.FLOAT}
    check(found.model, atol=5e-2)


def test_inputs_of_32_bits() -> None:
    found = optimized()
    before = len(found.get_nodes_by_op_type("Cast"))
    found.change_graph_inputs_to_int32()
    kinds = {value.type.tensor_type.elem_type for value in found.model.graph.input}
    assert kinds == {TensorProto.INT32}
    assert len(found.get_nodes_by_op_type("Cast")) < before
    found.topological_sort()
    check(found.model)


def test_dynamic_axes() -> None:
    found = BertOnnxModel(MODEL)
    found.optimize(add_dynamic_axes=True)
    shapes = {value.name: found.get_shape(value.name) for value in found.model.graph.input}
    assert set(map(tuple, shapes.values())) == {("batch_size", "max_seq_len")}
    assert found.model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch_size"


def test_other_kinds_of_models() -> None:
    for kind in optimizer.MODEL_TYPES:
        found = optimized(model_type=kind)
        assert type(found) is optimizer.MODEL_TYPES[kind][0]
        assert sum(found.get_fused_operator_statistics().values()) > 0
    statistics = {kind: counts(optimized(model_type=kind)) for kind in ("sam2", "mmdit", "unet", "clip", "vae")}
    assert statistics["sam2"] == {"MultiHeadAttention": 2, "LayerNormalization": 1, "SkipLayerNormalization": 4}
    assert statistics["mmdit"] == {"MultiHeadAttention": 2, "LayerNormalization": 5}
    assert statistics["unet"]["MultiHeadAttention"] == 2
    assert statistics["clip"]["Attention"] == statistics["vae"]["Attention"] == 2


def test_unknown_kinds_come_back_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    found = optimizer.optimize_model(MODEL, "unheard_of")
    assert found.model is MODEL
    assert optimizer.optimize_by_fusion(MODEL, "unheard_of").model is MODEL
    assert caplog.text.count("Unsupported model type: unheard_of") == 2


def test_the_model_that_was_given_stays_as_it_is() -> None:
    before = MODEL.SerializeToString()
    optimizer.optimize_by_fusion(MODEL)
    assert MODEL.SerializeToString() == before


def test_another_producer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    optimized(model_type="bert_tf")
    assert 'Model producer not matched: Expected "tf2onnx", Got "pytorch"' in caplog.text


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="opt_level=7: choose one of None, 0, 1, 2, 3, 99"):
        optimizer.optimize_model(MODEL, opt_level=7)
    with pytest.raises(ValueError, match="opt_level=0: choose one of 1, 2, 3, 99"):
        optimizer.optimize_by_onnxruntime(MODEL, opt_level=0)
    with pytest.raises(ValueError, match="needs onnx_model"):
        optimizer.optimize_by_onnxruntime()
    with pytest.raises(errors.NoSuchFile):
        optimizer.optimize_model(str(tmp_path / "absent.onnx"))
    with pytest.raises(errors.NotImplemented, match="no CPU kernel"):
        BertOnnxModel(MODEL).convert_to_packing_mode()
    path = tmp_path / "m.onnx"
    copy = onnx.ModelProto.FromString(MODEL.SerializeToString())
    onnx.save_model(copy, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(ValueError, match="external data not loaded into memory"):
        optimizer.optimize_model(onnx.load(path, load_external_data=False))


def test_weights_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    copy = onnx.ModelProto.FromString(MODEL.SerializeToString())
    onnx.save_model(copy, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    for given in (str(path), path, onnx.load(path)):
        found = optimized(given)
        assert counts(found) == FULL
        check(found.model)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sardonyx.transformers.optimizer", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def test_the_command(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save_model(MODEL, source)
    done = command("--input", str(source), "--output", str(target), "--disable_bias_gelu", "--float16", "--input_int32")
    assert done.returncode == 0, done.stderr
    assert "The model has been fully optimized." in done.stderr
    found = onnx.load(target)
    kinds = [node.op_type for node in found.graph.node]
    assert ("Gelu" in kinds, "BiasGelu" in kinds) == (True, False)
    assert {value.type.tensor_type.elem_type for value in found.graph.input} == {TensorProto.INT32}
    check(str(target), atol=5e-2)
    wrong = command("--input", str(source))
    assert wrong.returncode == 2
    assert "--output" in wrong.stderr


def test_the_command_writes_external_data(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "new" / "out.onnx"
    onnx.save_model(MODEL, source)
    optimizer.main(["--input", str(source), "--output", str(target), "--use_external_data_format", "--model_type=BERT"])
    assert Path(f"{target}.data").exists()
    check(str(target))


def test_metadata_and_names_stay() -> None:
    copy = onnx.ModelProto.FromString(MODEL.SerializeToString())
    copy.metadata_props.add(key="origin", value="a test")
    found = optimized(copy).model
    assert [(item.key, item.value) for item in found.metadata_props] == [("origin", "a test")]
    assert [value.name for value in found.graph.input] == [value.name for value in copy.graph.input]
    assert [value.name for value in found.graph.output] == [value.name for value in copy.graph.output]
    names = [node.name for node in found.graph.node]
    assert "" not in names
    assert len(set(names)) == len(names)
    assert all(tensor.data_location == TensorProto.DEFAULT for tensor in found.graph.initializer)
    assert all(numpy_helper.to_array(tensor).shape == tuple(tensor.dims) for tensor in found.graph.initializer)
