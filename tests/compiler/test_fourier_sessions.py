"""Sessions of DFT and STFT: native wherever ranks are known, whatever is data, and right for random requests."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import sardonyx as ort

Array = np.ndarray[Any, Any]

_TYPES = [np.dtype(kind) for kind in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
# Of the norm of the result.
_BOUNDS = {"float32": 1e-6, "float64": 1e-14, "float16": 5e-4, "bfloat16": 4e-3}
_LENGTHS = (1, 2, 3, 5, 8, 31, 60, 97, 128, 211, 400)


def model(op: str, opset: int, inputs: dict[str, Array | None], constants: set[str], **attributes: int) -> ModelProto:
    """One node; the first input's dimensions are not known, inputs in `constants` are initializers."""
    given = {name: value for name, value in inputs.items() if value is not None}
    first = next(iter(given))
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(value.dtype),
            [None] * value.ndim if name == first else value.shape,
        )
        for name, value in given.items()
        if name not in constants
    ]
    names = [name if value is not None else "" for name, value in inputs.items()]
    result = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(given[first].dtype), None)
    initializers = [numpy_helper.from_array(given[name], name) for name in given if name in constants]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", infos, [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(proto: ModelProto, inputs: dict[str, Array | None]) -> Array:
    """The result of the session, all of which is native."""
    session = ort.InferenceSession(proto.SerializeToString())
    assert [step.kind for step in session._sess._plan.steps] == ["segment"]
    names = {item.name for item in session.get_inputs()}
    (result,) = session.run(None, {name: value for name, value in inputs.items() if name in names})
    return np.asarray(result)


def in_parts(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def as_complex(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1])


def check(got: Array, want: Array, dtype: np.dtype[Any]) -> None:
    assert got.dtype == dtype
    assert got.shape == want.shape
    error = np.linalg.norm((got.astype(np.float64) - want).ravel())
    assert error <= _BOUNDS[dtype.name] * np.linalg.norm(want.ravel())


@pytest.mark.parametrize("seed", range(60))
def test_random_transforms(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, length = _TYPES[seed % 4], int(rng.choice(_LENGTHS))
    rank = int(rng.integers(2, 5))
    axis = int(rng.integers(0, rank - 1))
    inverse, onesided = (bool(flag) for flag in rng.integers(0, 2, 2))
    shape = [*rng.integers(1, 5, rank - 1).tolist(), int(rng.integers(1, 3))]
    shape[axis] = length
    x = rng.standard_normal(shape).astype(dtype)
    wanted = max(1, length + int(rng.integers(-6, 20))) if seed % 3 else None
    default = 2 * (length - 1) if inverse and onesided else length
    if wanted is None and default < 1:
        wanted = 4
    opset = int(rng.choice([17, 20, 23]))
    inputs: dict[str, Array | None] = {"x": x, "n": None if wanted is None else np.array(wanted)}
    attributes = {"inverse": int(inverse), "onesided": int(onesided)}
    if opset < 20:
        attributes["axis"] = axis
    else:
        inputs["axis"] = np.array(axis - rank)
    constants = {name for name in ("n", "axis") if rng.integers(0, 2)}
    got = run(model("DFT", opset, inputs, constants, **attributes), inputs)
    count = default if wanted is None else wanted
    if inverse and onesided:
        want = np.fft.irfft(as_complex(x), count, axis)[..., None]
    else:
        z = (np.fft.ifft if inverse else np.fft.fft)(as_complex(x), count, axis)
        want = in_parts(np.take(z, range(count // 2 + 1), axis) if onesided else z)
    check(got, want, dtype)


@pytest.mark.parametrize("seed", range(40))
def test_random_frames(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, length, step = _TYPES[seed % 4], int(rng.choice(_LENGTHS)), int(rng.integers(1, 90))
    onesided = bool(rng.integers(0, 2))
    size = length + int(rng.integers(0, 500))
    signal = rng.standard_normal((int(rng.integers(1, 4)), size, int(rng.integers(1, 3)))).astype(dtype)
    flat = seed % 8 == 5
    signal = signal[..., :1] if flat else signal
    window = rng.random(length).astype(dtype)
    inputs: dict[str, Array | None] = {
        "signal": signal[..., 0] if flat else signal,
        "step": np.array(step),
        "window": window if seed % 3 else None,
        "length": np.array(length) if seed % 3 != 1 else None,
    }
    constants = {name for name in ("step", "window", "length") if rng.integers(0, 2)}
    got = run(model("STFT", 17, inputs, constants, onesided=int(onesided)), inputs)
    count = (size - length) // step + 1
    frames = np.stack([as_complex(signal)[:, one * step : one * step + length] for one in range(count)], 1)
    z = np.fft.fft(frames * (window.astype(np.float64) if seed % 3 else 1.0))
    check(got, in_parts(z[..., : length // 2 + 1] if onesided else z), dtype)
