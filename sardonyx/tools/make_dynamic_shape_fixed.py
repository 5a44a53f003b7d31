"""``python -m sardonyx.tools.make_dynamic_shape_fixed``: fix a symbolic dimension or the shape of an input."""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Sequence

import onnx

from sardonyx.graph.saving import write_message
from sardonyx.tools.onnx_model_utils import fix_output_shapes, make_dim_param_fixed, make_input_shape_fixed


def make_dynamic_shape_fixed_helper(arguments: Sequence[str] | None = None) -> None:
    """The command: reads a model, fixes what the arguments say, writes it."""
    parser = argparse.ArgumentParser(
        f"{os.path.basename(__file__)}:{make_dynamic_shape_fixed_helper.__name__}", description=__doc__
    )
    parser.add_argument("--dim_param", help="symbolic dimension to fix; needs --dim_value")
    parser.add_argument("--dim_value", type=int, help="the number for it")
    parser.add_argument("--input_name", help="input whose shape is fixed; needs --input_shape")
    parser.add_argument(
        "--input_shape", type=lambda text: [int(item) for item in text.split(",")], help="its shape, as 1,3,224,224"
    )
    parser.add_argument("input_model", type=pathlib.Path)
    parser.add_argument("output_model", type=pathlib.Path)
    args = parser.parse_args(arguments)
    by_name, by_input = args.dim_param and args.dim_value, args.input_name and args.input_shape
    if bool(by_name) == bool(by_input):
        parser.error("give either --dim_param with --dim_value or --input_name with --input_shape")
    model = onnx.load(str(args.input_model.resolve(strict=True)))
    if by_name:
        make_dim_param_fixed(model.graph, args.dim_param, args.dim_value)
    else:
        make_input_shape_fixed(model.graph, args.input_name, args.input_shape)
    fix_output_shapes(model)
    write_message(model, args.output_model)


if __name__ == "__main__":
    make_dynamic_shape_fixed_helper()
