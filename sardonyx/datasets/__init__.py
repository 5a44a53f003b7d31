"""Small models for examples: `mul_1.onnx`, `sigmoid.onnx` and `logreg_iris.onnx`, a classifier of irises."""

from __future__ import annotations

from pathlib import Path

__all__ = ["get_example"]


def get_example(name: str) -> str:
    """The absolute path of an example; FileNotFoundError for a name that is none."""
    path = Path(__file__).resolve().parent / name
    if not path.exists():
        raise FileNotFoundError(f"Unable to find example '{name}'")
    return str(path)
