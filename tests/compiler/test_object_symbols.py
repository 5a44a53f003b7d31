"""Kernels call no function that is not there: LLVM's own conversions of narrow floats above all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.library import Emit, KernelLibrary
from sardonyx.compiler.llvm.target import Target
from sardonyx.runtime.files.kernel_cache import KernelCache
from tests.compiler.aarch64.driver import MATHEMATICS
from tests.compiler.object_symbols import undefined_functions
from tests.compiler.small_models import SMALL_MODELS
from tests.compiler.test_codegen import TARGETS
from tests.compiler.typed_models import typed

# What the executor asks of the system, and the pool of results of Python.
SYSTEM = {
    "syscall",
    "clock_gettime",
    "nanosleep",
    "sched_yield",
    "sched_getcpu",
    "sched_setaffinity",
    "sched_getaffinity",
    "pthread_self",
    "sigaction",
}
POOL = {"posix_memalign", "madvise", "free", "PyCapsule_GetContext", "PyCapsule_GetPointer"}
ALLOWED = {"memcpy", "memmove", "memset", *(name for name, _, _ in MATHEMATICS), *SYSTEM, *POOL}

pytestmark = pytest.mark.names_targets

DTYPES = ("float32", "float16", "bfloat16", "float64")
# Machines whose other types are tested where another one converts them, by the same instructions.
CONVERTS_AS = {"avx512vnni": ("amx", ("float32",)), "amx": ("avx512", ("float32", "bfloat16"))}


class Scanned(KernelLibrary):
    """Compiles kernels, and notes what they call instead of loading them."""

    calls: dict[str, str]

    def load(self, name: str, code: bytes) -> int:
        for function in undefined_functions(code):
            self.calls.setdefault(function, self.key)
        return 1

    def begin(self, compile_threads: int) -> None:
        super().begin(0)  # one kernel at a time

    def _compiled(self, key: str, text: str) -> int:
        self.key = key
        return super()._compiled(key, text)

    def run(self, emit: Emit, spec: Any, arguments: Sequence[Any], chunks: int, threads: int = 1) -> None:
        self.address(emit, spec)


def scanned(target: Target, monkeypatch: pytest.MonkeyPatch) -> Scanned:
    """The library of sessions on a machine that has this target alone.

    What generated code calls is settled where operations and types become those of the target, at any level.
    """
    monkeypatch.setattr("sardonyx.compiler.llvm.codegen._LEVEL", 0)
    found = Scanned(target, KernelCache(None))
    found.calls = {}
    found._loader = found  # type: ignore[assignment]
    monkeypatch.setattr("sardonyx.compiler.llvm.target.host_targets", lambda: {target.name: target})
    libraries = {(purpose, target.key): found for purpose in ("models", "runtime")}
    monkeypatch.setattr("sardonyx.compiler.llvm.library._LIBRARIES", libraries)
    return found


@pytest.mark.parametrize("name", list(TARGETS))
def test_kernels_of_every_type_call_only_what_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scanned(TARGETS[name], monkeypatch)
    like, dtypes = CONVERTS_AS.get(name, (name, DTYPES))
    assert found.target.has_f16_converts == TARGETS[like].has_f16_converts
    for small in SMALL_MODELS.values():
        for dtype in ("float32",) if small.float32_alone else dtypes:
            try:
                ort.InferenceSession(typed(small.model, dtype).SerializeToString(), providers=["CPUExecutionProvider"])
            except errors.InvalidGraph:
                assert dtype != "float32"  # ONNX has some operators for fewer types
    assert {key: kernel for key, kernel in found.calls.items() if key not in ALLOWED} == {}
    assert found.calls


@pytest.mark.parametrize("name", ["avx512", "neon", "wasm"])
def test_missing_functions_are_found(name: str) -> None:
    target = TARGETS[name]
    text = f"""target triple = "{target.triple}"
        declare i64 @elsewhere(i64)
        define i64 @here(i64 %x) {{
          %y = call i64 @elsewhere(i64 %x)
          ret i64 %y
        }}
        define i64 @kernel(i64 %x) {{
          %y = call i64 @here(i64 %x)
          ret i64 %y
        }}"""
    assert undefined_functions(compile_object(text, target)) == {"elsewhere"}


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_conversion_by_a_function_is_found_at_any_level(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS[name]
    text = f"""target triple = "{target.triple}"
        define void @kernel(ptr %from, ptr %to) {target.function_attributes()} {{
          %x = load double, ptr %from
          %y = fptrunc double %x to half
          store half %y, ptr %to
          ret void
        }}"""
    expected = set() if name == "neon" else {"__truncdfhf2"}
    assert undefined_functions(compile_object(text, target)) == expected
    monkeypatch.setattr("sardonyx.compiler.llvm.codegen._LEVEL", 0)
    assert undefined_functions(compile_object(text, target)) == expected
