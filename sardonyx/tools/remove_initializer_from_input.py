"""``python -m sardonyx.tools.remove_initializer_from_input``: make initializers constants that nobody overrides."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import onnx
from onnx import ModelProto

from sardonyx.graph.saving import write_message


def remove_initializer_from_input(model: ModelProto) -> bool:
    """Remove initializers from the inputs of `model`, in place; whether there were any.

    ValueError for a model of IR version 3 or older, which lists its initializers among the inputs by definition.
    """
    if model.ir_version < 4:
        raise ValueError(
            "Model with ir_version below 4 requires to include initializer in graph input; "
            f"this one has ir_version {model.ir_version}"
        )
    names = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in names]
    changed = len(kept) != len(model.graph.input)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return changed


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True, help="model to read")
    parser.add_argument("--output", required=True, help="model to write")
    args = parser.parse_args(arguments)
    model = onnx.load(args.input)
    remove_initializer_from_input(model)
    write_message(model, args.output)


if __name__ == "__main__":
    main()
