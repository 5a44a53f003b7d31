"""``python -m sardonyx.quantization.preprocess``: make a model ready for quantization, see `quant_pre_process`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from sardonyx import errors
from sardonyx.quantization.shape_inference import quant_pre_process

__all__ = ["main", "parse_arguments", "quant_pre_process"]


def _flag(text: str) -> bool:
    """The truth value that a text stands for."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}
    if text.strip().lower() not in words:
        raise argparse.ArgumentTypeError(f"expected true or false, not {text!r}")
    return words[text.strip().lower()]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(description="Simplify a model and write the shapes of its values into it.")
    parser.add_argument("--input", required=True, help="model to read")
    parser.add_argument("--output", required=True, help="model to write")
    switch: dict[str, Any] = {"type": _flag, "nargs": "?", "const": True, "default": False, "metavar": "true|false"}
    parser.add_argument("--skip_optimization", **switch, help="leave the nodes as they are")
    parser.add_argument("--skip_onnx_shape", **switch, help="with --skip_symbolic_shape: infer no shapes")
    parser.add_argument("--skip_symbolic_shape", **switch, help="with --skip_onnx_shape: infer no shapes")
    parser.add_argument("--auto_merge", action="store_true", help="accepted: no dimension is guessed")
    parser.add_argument("--int_max", type=int, default=2**31 - 1, help="accepted: the ends of slices are known")
    parser.add_argument("--guess_output_rank", action="store_true", help="accepted: no rank is guessed")
    parser.add_argument("--verbose", type=int, default=0, help="1 lists the values whose rank is not known")
    parser.add_argument("--save_as_external_data", action="store_true", help="write weights to files of their own")
    parser.add_argument("--all_tensors_to_one_file", action="store_true", help="one file for all weights")
    parser.add_argument("--external_data_location", help="the name of that file, in the folder of the output")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024, help="smaller weights stay, in bytes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0, or 1 with the reason on standard error where it fails."""
    args = vars(parse_arguments(arguments))
    try:
        quant_pre_process(args.pop("input"), args.pop("output"), **args)
    except errors.OnnxRuntimeError as error:
        print(f"preprocess: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
