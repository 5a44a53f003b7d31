"""What clients of `onnxruntime.transformers` do, unmodified, on the compat distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx

from tests.transformers.small_models import bert

ROOT = Path(__file__).parents[2]

# As optimum.onnxruntime.ORTOptimizer does it.
OPTIMUM = """
from argparse import Namespace
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.onnx_model_bert import BertOnnxModel
from onnxruntime.transformers.optimizer import optimize_model
import onnxruntime

flags = ["disable_gelu", "disable_layer_norm", "disable_attention", "disable_skip_layer_norm",
         "disable_embed_layer_norm", "disable_bias_skip_layer_norm", "disable_bias_gelu", "enable_gelu_approximation",
         "disable_shape_inference", "use_mask_index", "no_attention_mask", "use_multi_head_attention",
         "enable_gemm_fast_gelu", "use_raw_attention_mask", "disable_group_norm", "disable_packed_kv",
         "disable_rotary_embeddings"]
options = FusionOptions.parse(Namespace(model_type="bert", **dict.fromkeys(flags, False)))
optimizer = optimize_model("m.onnx", "bert", 2, 8, opt_level=1, optimization_options=options, use_gpu=False,
                           only_onnxruntime=False)
optimizer.convert_float_to_float16(use_symbolic_shape_infer=True, keep_io_types=True)
optimizer.save_model_to_file("out.onnx", use_external_data_format=False, all_tensors_to_one_file=True)
counts = BertOnnxModel(optimizer.model).get_fused_operator_statistics()
print({name: count for name, count in counts.items() if count}, onnxruntime.__file__)
session = onnxruntime.InferenceSession("out.onnx", providers=["CPUExecutionProvider"])
print([item.type for item in session.get_outputs()])
"""

# As Olive's passes do it.
OLIVE = """
import onnx, onnxruntime
from onnxruntime.transformers import float16, optimizer
from onnxruntime.transformers.onnx_model import OnnxModel
from onnxruntime.transformers.shape_infer_helper import SymbolicShapeInferenceHelper

model = OnnxModel(onnx.load("m.onnx"))
model.prune_graph()
model.topological_sort(is_deterministic=True)
print(len(model.nodes()) > 50, SymbolicShapeInferenceHelper(model.model).infer({}), "bert" in optimizer.MODEL_TYPES)
half = float16.convert_float_to_float16(model.model, min_positive_val=1e-7, max_finite_val=1e4, keep_io_types=True,
    disable_shape_infer=False, op_block_list=float16.DEFAULT_OP_BLOCK_LIST, node_block_list=None)
print(OnnxModel(half).use_float16())
"""


def run(arguments: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(ROOT / "compat" / "onnxruntime"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    onnx.save_model(bert()[1], folder / "m.onnx")
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_optimum(tmp_path: Path) -> None:
    shown = run(["-c", OPTIMUM], tmp_path)
    assert "{'EmbedLayerNormalization': 1, 'Attention': 2, 'BiasGelu': 2, 'SkipLayerNormalization': 4}" in shown
    assert str(ROOT / "compat") in shown
    assert "['tensor(float)']" in shown


def test_olive(tmp_path: Path) -> None:
    assert run(["-c", OLIVE], tmp_path).split() == ["True"] * 4


def test_the_module_as_a_command(tmp_path: Path) -> None:
    shown = run(
        ["-m", "onnxruntime.transformers.optimizer", "--input", "m.onnx", "--output", "out.onnx", "--verbose"], tmp_path
    )
    assert "The model has been fully optimized." in shown
    assert [item.version for item in onnx.load(tmp_path / "out.onnx").opset_import if item.domain == "com.microsoft"]


def test_importing_takes_no_other_framework() -> None:
    program = """
import sys, sardonyx.transformers.optimizer, sardonyx.transformers.float16, sardonyx.transformers.fusion_base
print({"torch", "transformers", "sympy", "onnxruntime", "tqdm"} & set(sys.modules))
"""
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["set()"]
