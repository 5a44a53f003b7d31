"""What Olive's users do: its passes of quantization, with several settings. Run by test_clients.py.

Prints JSON: for each quantised model its operators, and how far its output is from that of the float model.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from olive.data.config import DataComponentConfig, DataConfig
from olive.data.registry import Registry
from olive.hardware import AcceleratorSpec, Device
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.qnn.qnn_preprocess import QNNPreprocess
from olive.passes.onnx.quantization import OnnxDynamicQuantization, OnnxStaticQuantization
from torch.utils.data import DataLoader, Dataset

QNN = AcceleratorSpec(accelerator_type=Device.NPU, execution_provider="QNNExecutionProvider")


class Images(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        image = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(index))
        return {"x": image}, torch.tensor(0)


@Registry.register_dataset()
def small_images(**_: Any) -> Images:
    return Images()


@Registry.register_dataloader()
def small_batches(dataset: Any, batch_size: int, **_: Any) -> DataLoader:
    return DataLoader(Images(), batch_size=2)


def settings() -> dict[str, tuple[type, dict[str, Any]]]:
    data = DataConfig(
        name="small",
        load_dataset_config=DataComponentConfig(type="small_images"),
        dataloader_config=DataComponentConfig(type="small_batches"),
    )
    found: dict[str, tuple[type, dict[str, Any]]] = {
        "dynamic": (OnnxDynamicQuantization, {}),
        "dynamic uint8": (OnnxDynamicQuantization, {"precision": "uint8"}),
        "dynamic channels": (OnnxDynamicQuantization, {"per_channel": True}),
    }
    for form in ("QDQ", "QOperator"):
        for whole in (True, False):
            for method in ("MinMax", "Entropy", "Percentile"):
                found[f"{form} {'whole' if whole else 'usual'} {method}"] = (
                    OnnxStaticQuantization,
                    {
                        "data_config": data,
                        "quant_format": form,
                        "activation_type": "uint8",
                        "precision": "int8",
                        "prepare_qdq_config": whole,
                        "calibrate_method": method,
                    },
                )
    wide = {"data_config": data, "activation_type": "uint16"}
    found["16 bits"] = (OnnxStaticQuantization, {**wide, "precision": "int8"})
    for activation in ("uint8", "uint16"):
        form = {"quant_format": "QDQ", "prepare_qdq_config": True, "activation_type": activation}
        found[f"QNN {activation}"] = (OnnxStaticQuantization, {"data_config": data, "precision": "uint8", **form})
    found["QNN channels last"] = (QNNPreprocess, {"inputs_to_make_channel_last": ["x"]})
    found["16 and 4 bits"] = (OnnxStaticQuantization, {**wide, "precision": "int4", "per_channel": True})
    return found


def main(folder: Path) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()]
    torch.onnx.export(
        torch.nn.Sequential(*layers, torch.nn.Linear(8 * 49, 10)).eval(),
        (torch.randn(2, 3, 16, 16),),
        str(folder / "model.onnx"),
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    feeds = {"x": Images()[0][0]["x"][None].numpy()}
    exact = onnxruntime.InferenceSession(str(folder / "model.onnx")).run(None, feeds)[0]
    found = {}
    for name, (kind, given) in settings().items():
        given_to = QNN if name.startswith("QNN") else None
        pass_ = create_pass_from_dict(kind, given, disable_search=True, accelerator_spec=given_to)
        target = folder / f"{name.replace(' ', '-')}.onnx"
        result = pass_.run(ONNXModelHandler(model_path=str(folder / "model.onnx")), str(target))
        turned = {"x": feeds["x"].transpose(0, 2, 3, 1)} if kind is QNNPreprocess else feeds
        output = onnxruntime.InferenceSession(result.model_path).run(None, turned)[0]
        model = onnx.load(result.model_path)
        found[name] = {
            "error": float(np.abs(output - exact).max() / np.abs(exact).max()),
            "operators": collections.Counter(node.op_type for node in model.graph.node),
        }
    print(json.dumps({"onnxruntime": onnxruntime.__file__, "models": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
