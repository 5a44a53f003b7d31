"""``python -m sardonyx.tools.onnxruntime_test``: run a model on random inputs and time it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.api.building.node_arg import NodeArg
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.api.values import element_types

Array = np.ndarray[Any, Any]


def generate_feeds(session: InferenceSession, symbolic_dims: Mapping[str, int] | None = None) -> dict[str, Array]:
    """A random array for every input; unnamed dimensions become 1, RuntimeError for a named one without a size.

    RuntimeError too for inputs that are no tensors.
    """
    rng = np.random.default_rng(0)
    return {
        argument.name: _random(argument, _shape(argument, symbolic_dims or {}), rng)
        for argument in session.get_inputs()
    }


def run_model(
    model_path: str,
    num_iters: int = 1,
    debug: bool | None = None,
    profile: bool | None = None,
    symbolic_dims: Mapping[str, int] | None = None,
    feeds: Mapping[str, Any] | None = None,
    override_initializers: bool = True,
) -> tuple[int, Mapping[str, Any] | None, list[Any]]:
    """Run a model `num_iters` times and print the time: (0, feeds of the caller, outputs of the last run)."""
    options = SessionOptions()
    if debug:
        options.log_severity_level = 0
    options.enable_profiling = bool(profile)
    session = InferenceSession(model_path, options, providers=["CPUExecutionProvider"])
    used = dict(feeds) if feeds else generate_feeds(session, symbolic_dims)
    if override_initializers and not feeds:
        rng = np.random.default_rng(1)
        for argument in session.get_overridable_initializers():
            used[argument.name] = _random(argument, _shape(argument, symbolic_dims or {}), rng)
    outputs: list[Any] = []
    start = time.perf_counter()
    for _ in range(num_iters):
        outputs = session.run(None, used)
    seconds = time.perf_counter() - start
    print(f"model: {model_path}")
    print(f"runs: {num_iters}, milliseconds each: {1000 * seconds / max(num_iters, 1):.3f}")
    if profile:
        print(f"profile: {session.end_profiling()}")
    return 0, feeds, outputs


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_path", help="model to run")
    parser.add_argument("num_iters", nargs="?", type=int, default=1000, help="number of runs")
    parser.add_argument("--debug", action="store_true", help="log everything")
    parser.add_argument("--profile", action="store_true", help="write a profile")
    parser.add_argument("--symbolic_dims", type=_sizes, default={}, help="sizes of symbolic dimensions: batch=1,seq=8")
    args = parser.parse_args(arguments)
    return run_model(args.model_path, args.num_iters, args.debug, args.profile, args.symbolic_dims)[0]


def _sizes(text: str) -> dict[str, int]:
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip(): int(size) for name, _, size in pairs}


def _shape(argument: NodeArg, sizes: Mapping[str, int]) -> list[int]:
    missing = [dim for dim in argument.shape if isinstance(dim, str) and dim not in sizes]
    if missing:
        raise RuntimeError(f"Unknown symbolic dims in both of symbolic_dims and input '{argument.name}': {missing}")
    return [1 if dim is None else sizes[dim] if isinstance(dim, str) else dim for dim in argument.shape]


def _random(argument: NodeArg, shape: Sequence[int], rng: np.random.Generator) -> Array:
    if not argument.type.startswith("tensor("):
        raise RuntimeError(f"input '{argument.name}' is a {argument.type}: give its value in `feeds`")
    kind = element_types.by_name(argument.type[len("tensor(") : -1])
    if kind.number == element_types.STRING:
        return np.full(shape, "a", object)
    # Small whole numbers are valid indices, lengths and truth values as well as ordinary numbers.
    values: Array = rng.integers(0, 2, shape) if kind.dtype.kind in "iub" else rng.random(shape)
    return values.astype(kind.dtype)


if __name__ == "__main__":
    sys.exit(main())
