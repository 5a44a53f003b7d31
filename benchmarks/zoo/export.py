"""From a torch module to an ONNX file, through either of torch's exporters."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from torch import nn

from benchmarks.zoo import registry
from benchmarks.zoo.inputs import make_inputs


def export(model: registry.Model, module: nn.Module, path: Path) -> None:
    """Write `module` as the ONNX file of `model`, which says the exporter, the opset and the symbolic axes."""
    # Sizes that occur nowhere else: no dimension is taken for constant, none is confused with another.
    inputs = make_inputs(model, model.other_sizes)
    arguments = tuple(torch.from_numpy(value) for value in inputs.values())
    if model.maker == "dynamo":
        _export_dynamo(model, module, arguments, path)
    else:
        _export_torchscript(model, module, arguments, path)


def _export_torchscript(
    model: registry.Model, module: nn.Module, arguments: tuple[torch.Tensor, ...], path: Path
) -> None:
    mode = torch.onnx.TrainingMode
    torch.onnx.export(
        module,
        arguments,
        str(path),
        dynamo=False,
        opset_version=model.opset,
        # PRESERVE leaves the module in eval mode as it is; only EVAL folds BatchNorm into convolutions.
        training=mode.PRESERVE if model.keep_batch_norm else mode.EVAL,
        input_names=[tensor.name for tensor in model.inputs],
        output_names=[tensor.name for tensor in model.outputs],
        dynamic_axes={tensor.name: tensor.symbolic_axes() for tensor in (*model.inputs, *model.outputs)},
    )


def _export_dynamo(model: registry.Model, module: nn.Module, arguments: tuple[torch.Tensor, ...], path: Path) -> None:
    dims = {name: torch.export.Dim(name) for name in model.sizes}
    # A sum of dimensions is one that the exporter finds by itself.
    shapes = [
        {axis: dims.get(name, torch.export.Dim.AUTO) for axis, name in tensor.symbolic_axes().items()}
        for tensor in model.inputs
    ]
    parameters = inspect.signature(module.forward).parameters.values()
    named = sum(parameter.kind is not inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    gathered = () if named == len(shapes) else (tuple(shapes[named:]),)  # those of *arguments
    torch.onnx.export(
        module,
        arguments,
        str(path),
        dynamo=True,
        opset_version=model.opset,
        input_names=[tensor.name for tensor in model.inputs],
        output_names=[tensor.name for tensor in model.outputs],
        dynamic_shapes=(*shapes[:named], *gathered),
        external_data=True,
        verbose=False,
    )
