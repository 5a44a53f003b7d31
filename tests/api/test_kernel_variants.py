"""Sessions with the kernels of every instruction set that this machine can execute, against those of NumPy."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.llvm.target import host_targets
from tests.compiler.small_models import SMALL_MODELS, Array


def run(name: str, kernels: str) -> list[list[Array]]:
    """The outputs of every run of a model, with inputs in turn of all its sizes."""
    small = SMALL_MODELS[name]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    session = ort.InferenceSession(small.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(None, small.inputs(sizes)) for sizes in small.sizes]


@functools.cache
def by_numpy(name: str) -> list[list[Array]]:
    return run(name, "numpy")


def check_close(name: str, found: Sequence[Array], expected: Sequence[Array]) -> None:
    """Outputs of a small model agree within its tolerance and the rounding of their type; whole numbers exactly."""
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.kind in "bi":
            np.testing.assert_array_equal(one, other)
            continue
        step = {2: 2.0**-8 if one.dtype.name == "bfloat16" else 2.0**-11}.get(one.dtype.itemsize, 0.0)
        wide = other.astype(np.float64)
        allowed = max(SMALL_MODELS[name].tolerance, step) * np.abs(wide).max(initial=1.0)
        np.testing.assert_allclose(one.astype(np.float64), wide, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", list(SMALL_MODELS))
@pytest.mark.parametrize("variant", list(host_targets()))
def test_every_variant_computes_what_numpy_does(variant: str, name: str) -> None:
    for found, expected in zip(run(name, variant), by_numpy(name), strict=True):
        check_close(name, found, expected)


@pytest.mark.parametrize("name", ["amx", "neon", "avx512", "portable"])
def test_a_variant_that_the_machine_lacks_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {key: target for key, target in host_targets().items() if key != name}
    monkeypatch.setattr("sardonyx.compiler.llvm.target.host_targets", lambda: others)
    with pytest.raises(errors.InvalidArgument, match=f"cannot execute the instruction set '{name}'; it has"):
        run("pointwise", name)


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"sardonyx\.cpu\.kernels"):
        run("pointwise", "mmx")
