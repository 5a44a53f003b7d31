"""The names of providers, and memory that they give."""

from __future__ import annotations

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.providers import registry
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.providers.memory import ALIGNMENT, HostAllocator


def test_the_names_are_those_of_onnxruntime() -> None:
    theirs = pytest.importorskip("onnxruntime")
    assert ort.get_all_providers()[-len(registry.KNOWN_PROVIDERS) :] == theirs.get_all_providers()


def test_the_cpu_is_available_and_takes_every_option() -> None:
    assert ort.get_available_providers()[-1] == "CPUExecutionProvider"
    provider = registry.create("CPUExecutionProvider", {"use_arena": "1", "anything": "x"})
    assert provider.provider_options() == {}
    assert registry.why_unavailable("CUDAExecutionProvider") == "it is not installed"
    with pytest.raises(KeyError):
        registry.create("CUDAExecutionProvider", {})


def test_the_list_belongs_to_the_caller() -> None:
    ort.get_available_providers().clear()
    assert ort.get_available_providers()


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 5), np.float32), ((), np.int64), ((0, 2), np.uint8), ((7,), np.bool_)]
)
def test_host_memory_is_aligned(shape: tuple[int, ...], dtype: type) -> None:
    array = HostAllocator().empty(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.ctypes.data % ALIGNMENT == 0 or array.size == 0
    array[...] = 1
    assert array.sum() == array.size


def test_memory_of_other_devices_is_refused() -> None:
    provider = CPUExecutionProvider({})
    assert provider.allocator("cpu").name == "Cpu"
    assert provider.allocator().empty((2,), np.dtype(object)).tolist() == [None, None]
    with pytest.raises(ValueError, match="has no memory on device 'cuda'"):
        provider.allocator("cuda")
