"""What Optimum's users do with the optimizer, the quantizer and `optimum-cli`. Run by test_clients.py.

Prints JSON: for each row how far the logits are from those of the exported model, and the operators of the result.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import small_models
import torch
from optimum.commands import optimum_cli
from optimum.onnxruntime import (
    AutoOptimizationConfig,
    AutoQuantizationConfig,
    ORTConfig,
    ORTModelForCausalLM,
    ORTModelForSequenceClassification,
    ORTOptimizer,
    ORTQuantizer,
)

IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 10, 11, 3, 0]])
FEEDS = {"input_ids": IDS, "attention_mask": (IDS > 0).long(), "token_type_ids": torch.zeros_like(IDS)}
PRESETS = ("arm64", "avx2", "avx512", "avx512_vnni", "ppc64le")


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        source = small_models.write("classes", folder / "source")
        model = ORTModelForSequenceClassification.from_pretrained(source, export=True)
        model.save_pretrained(folder / "exported")
        expected = model(**FEEDS).logits.numpy()
        for level in ("O1", "O2", "O3", "O4"):
            target = folder / level
            optimizer = ORTOptimizer.from_pretrained(folder / "exported")
            optimizer.optimize(getattr(AutoOptimizationConfig, level)(), target)
            found[f"optimizer {level}"] = compared(target / "model_optimized.onnx", expected)
            loaded = ORTModelForSequenceClassification.from_pretrained(target, file_name="model_optimized.onnx")
            found[f"loaded {level}"] = {"error": relative(loaded(**FEEDS).logits.numpy(), expected)}
        decoder = ORTModelForCausalLM.from_pretrained(small_models.write("text", folder / "text"), export=True)
        decoder.save_pretrained(folder / "decoder")
        ids = torch.tensor([[7, 8, 9]])
        tokens = decoder.generate(ids, max_new_tokens=6, do_sample=False)
        ORTOptimizer.from_pretrained(decoder).optimize(AutoOptimizationConfig.O2(), folder / "decoder O2")
        faster = ORTModelForCausalLM.from_pretrained(folder / "decoder O2", file_name="model_optimized.onnx")
        again = faster.generate(ids, max_new_tokens=6, do_sample=False)
        found["decoder O2"] = {"error": float(not torch.equal(tokens, again))}
        ORTConfig(quantization=AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)).save_pretrained(
            folder / "config"
        )
        quantizer = ORTQuantizer.from_pretrained(model)
        quantizer.quantize(AutoQuantizationConfig.avx2(is_static=False), folder / "quantized")
        found["quantizer"] = compared(folder / "quantized" / "model_quantized.onnx", expected)
        found |= commands(folder, source, expected)
    print(json.dumps({"onnxruntime": onnxruntime.__file__, "models": found}))


def commands(folder: Path, source: Path, expected: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The rows of `optimum-cli`."""
    found = {}
    exported = str(folder / "exported")
    run("export", "onnx", "--model", str(source), "--task", "text-classification", str(folder / "cli"))
    found["cli export"] = compared(folder / "cli" / "model.onnx", expected)
    run(
        "export",
        "onnx",
        "--model",
        str(source),
        "--task",
        "text-classification",
        "--optimize",
        "O2",
        str(folder / "cli2"),
    )
    found["cli export --optimize O2"] = compared(folder / "cli2" / "model.onnx", expected)
    for level in ("-O1", "-O2", "-O3", "-O4"):
        target = folder / f"cli{level}"
        run("onnxruntime", "optimize", "--onnx_model", exported, level, "-o", str(target))
        found[f"cli optimize {level}"] = compared(target / "model_optimized.onnx", expected)
    for preset in PRESETS:
        target = folder / f"cli {preset}"
        run("onnxruntime", "quantize", "--onnx_model", exported, f"--{preset}", "--per_channel", "-o", str(target))
        found[f"cli quantize {preset}"] = compared(target / "model_quantized.onnx", expected)
    config = str(folder / "config" / "ort_config.json")
    run("onnxruntime", "quantize", "--onnx_model", exported, "-c", config, "-o", str(folder / "cli config"))
    found["cli quantize config"] = compared(folder / "cli config" / "model_quantized.onnx", expected)
    return found


def run(*arguments: str) -> None:
    """`optimum-cli`, in this process: it takes its arguments from where programs have them."""
    before, sys.argv = sys.argv, ["optimum-cli", *arguments]
    try:
        optimum_cli.main()
    finally:
        sys.argv = before


def compared(path: Path, expected: np.ndarray[Any, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path))
    names = {argument.name for argument in session.get_inputs()}
    logits = session.run(None, {name: value.numpy() for name, value in FEEDS.items() if name in names})[0]
    operators = collections.Counter(node.op_type for node in onnx.load(path).graph.node)
    return {"error": relative(logits, expected), "operators": operators}


def relative(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
