"""What Optimum's users do: `ORTQuantizer` with each preset, dynamic and static. Run by test_clients.py.

Prints JSON: for each quantised model its operators, and how far its logits are from those of the float model.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from datasets import Dataset
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import AutoCalibrationConfig, AutoQuantizationConfig
from transformers import BertConfig, BertForSequenceClassification

PRESETS = ("avx2", "avx512", "avx512_vnni", "arm64", "ppc64le", "tensorrt")


def main(folder: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    ids = torch.randint(0, 100, (2, 8))
    torch.onnx.export(
        BertForSequenceClassification(config).eval(),
        (ids, torch.ones_like(ids)),
        str(folder / "model.onnx"),
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_axes={"input_ids": {0: "batch"}, "attention_mask": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=14,
        dynamo=False,
    )
    config.save_pretrained(folder)
    feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones((2, 8), np.int64)}
    exact = onnxruntime.InferenceSession(str(folder / "model.onnx")).run(None, feeds)[0]
    random = np.random.default_rng(0)
    samples = Dataset.from_dict(
        {"input_ids": random.integers(0, 100, (8, 8)).tolist(), "attention_mask": np.ones((8, 8), int).tolist()}
    )
    found = {}
    for preset in PRESETS:
        for static in (False, True):
            for per_channel in (False, True):
                if preset == "tensorrt" and not static:
                    continue
                kind = {} if preset == "tensorrt" else {"is_static": static}
                settings = getattr(AutoQuantizationConfig, preset)(per_channel=per_channel, **kind)
                quantizer = ORTQuantizer.from_pretrained(folder, file_name="model.onnx")
                ranges = None
                if static:
                    ranges = quantizer.fit(
                        dataset=samples,
                        calibration_config=AutoCalibrationConfig.minmax(samples),
                        operators_to_quantize=settings.operators_to_quantize,
                        onnx_augmented_model_name=str(folder / "augmented.onnx"),
                    )
                name = f"{preset} {'static' if static else 'dynamic'} {'channels' if per_channel else 'tensor'}"
                target = folder / name.replace(" ", "-")
                quantizer.quantize(settings, target, calibration_tensors_range=ranges)
                path = target / "model_quantized.onnx"
                logits = onnxruntime.InferenceSession(str(path)).run(None, feeds)[0]
                model = onnx.load(path)
                found[name] = {
                    "error": float(np.abs(logits - exact).max() / np.abs(exact).max()),
                    "operators": collections.Counter(node.op_type for node in model.graph.node),
                    "types": sorted({onnx.TensorProto.DataType.Name(one.data_type) for one in model.graph.initializer}),
                }
    print(json.dumps({"onnxruntime": onnxruntime.__file__, "models": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
