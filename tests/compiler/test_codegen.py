"""Every template is generated, verified and compiled to object code for every target, those of other machines too."""

from __future__ import annotations

import importlib
import inspect
import itertools
import mmap
import pkgutil
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pytest

import sardonyx as ort
from sardonyx.compiler import kernels
from sardonyx.compiler.arguments import KernelSource
from sardonyx.compiler.llvm import kernels as llvm_kernels
from sardonyx.compiler.llvm.codegen import compile_assembly, compile_object
from sardonyx.compiler.llvm.kernels.engine.call import emit_call
from sardonyx.compiler.llvm.kernels.engine.executor import emit_executor
from sardonyx.compiler.llvm.kernels.products.gemm_product import takes_bounded
from sardonyx.compiler.llvm.library import Emit, Kernel, KernelLibrary
from sardonyx.compiler.llvm.lookup import has_lookup
from sardonyx.compiler.llvm.target import Caches, Target, aarch64_targets, host_targets, x86_64_targets
from sardonyx.runtime.files.kernel_cache import KernelCache
from tests.compiler.aarch64.machine import missing
from tests.compiler.small_models import SMALL_MODELS

_FEATURES = (
    "sse sse2 cx8 fxsr mmx x87 sse3 ssse3 sse4.1 sse4.2 popcnt cx16 avx avx2 fma f16c bmi bmi2 lzcnt movbe xsave "
    "avx512f avx512cd avx512bw avx512dq avx512vl avx512vnni avx512bf16 amx-tile amx-bf16 amx-int8"
)
# For other machines than the engine runs on so far: the kernels know of none of them.
WASM = Target(
    "wasm", "wasm32-unknown-unknown", ("simd128", "relaxed-simd"), 128, 16,
    has_fma=False, has_masks=False, has_f16_converts=False,
)  # fmt: skip
TARGETS = {**x86_64_targets(frozenset(_FEATURES.split(" ")), Caches()), **aarch64_targets(Caches()), "wasm": WASM}


EXECUTED = {*host_targets(), *([] if missing() else ["neon"])}


def templates() -> Iterator[str]:
    """Everything in the folders of kernels that writes a kernel, except what only measures the machine."""
    for package in (kernels, llvm_kernels):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(".ceilings"):
                continue
            for name, function in inspect.getmembers(importlib.import_module(module.name), _is_template):
                if name.startswith("emit_") and function.__module__ == module.name:
                    yield name


def _is_template(member: Any) -> bool:
    if isinstance(member, KernelSource):
        return True
    return inspect.isfunction(member) and [*inspect.signature(member).parameters][:1] == ["target"]


class Collected(KernelLibrary):
    """The kernels that sessions ask for; nothing is loaded, and nothing can be run."""

    def collect(self) -> None:
        self.asked: dict[str, tuple[Emit, Any]] = {}

    def kernel(self, emit: Emit, spec: Any) -> Kernel:
        self.asked[f"{emit.__name__}({spec!r})"] = emit, spec
        return Kernel(1)

    def run(self, emit: Emit, spec: Any, arguments: Sequence[Any], chunks: int, threads: int = 1) -> None:
        self.kernel(emit, spec)


def entries(target: Target) -> list[tuple[str, str]]:
    """Entries of sessions, which take other kernels with them."""
    found = [("precision", "float32"), ("precision", "bfloat16")]
    return [*found, ("float32_tiles", "0")] if target.has_amx else found


def longest(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Of the texts of each template those that say the most, in which all of its parts are."""
    by_template: dict[str, list[str]] = {}
    for template, text in texts:
        by_template.setdefault(template, []).append(text)
    for found in by_template.values():
        yield from sorted(found, key=len)[-_COMPILED:]


_COMPILED = 4  # of a template; `test_object_symbols` compiles the others


def kernels_of_sessions(
    target: Target, monkeypatch: pytest.MonkeyPatch, names: Collection[str] = SMALL_MODELS
) -> dict[str, tuple[Emit, Any]]:
    """What the small models need where the machine has this target."""
    found = Collected(target, KernelCache(None))
    found.collect()
    monkeypatch.setattr("sardonyx.compiler.llvm.target.host_targets", lambda: {target.name: target})
    monkeypatch.setattr(
        "sardonyx.compiler.llvm.library._LIBRARIES", {(purpose, target.key): found for purpose in ("models", "runtime")}
    )
    for small in (SMALL_MODELS[name] for name in names):
        models = [
            small.model,
            *map(small.sized, (*small.sizes, *small.large)),
        ]  # sizes that were guessed do not fit every model
        for model, (key, value) in itertools.product(models, entries(target)):
            options = ort.SessionOptions()
            options.add_session_config_entry(f"sardonyx.cpu.{key}", value)
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return found.asked


@pytest.mark.names_targets
@pytest.mark.parametrize("name", list(TARGETS))
def test_every_template_compiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS[name]
    asked = kernels_of_sessions(target, monkeypatch)
    wanted = set(templates()) - {"emit_interrupts"}  # for long runs
    if not target.has_amx:
        wanted -= {"emit_byte_tiles", "emit_words_in_tiles", "emit_framed_words"}
    if not target.has_bf16_dot:
        wanted.discard("emit_words")  # for products of pairs of bfloat16
    if not target.has_masks:
        wanted.discard("emit_row_strips")  # whose rows end by masks
    if not takes_bounded(target):
        wanted.discard("emit_bounded_words")
    if target.has_amx or target.architecture != "x86_64":
        wanted.discard("emit_byte_filtering")  # tiles multiply all bytes sooner; pairs of 16 bits are an x86-64 matter
    if target.architecture != "x86_64" or target.vector_bits < 256:
        wanted.discard("emit_depthwise_words")
    if not has_lookup(target):
        wanted.discard("emit_resized_strips")
    if not target.has_fma:
        wanted.discard("emit_bands")  # arithmetic takes longer than the maps that it keeps in the caches
    assert sorted(wanted - {emit.__name__ for emit, _ in asked.values()}) == []
    if name in EXECUTED:
        return  # other tests compile and run them
    for text in longest((emit.__name__, emit(target, spec)) for emit, spec in asked.values()):
        assert len(compile_object(text, target)) > 200


SYSTEMS = [
    *((x86_64_targets, (frozenset(_FEATURES.split(" ")), Caches(), system)) for system in ("windows", "darwin")),
    *((aarch64_targets, (Caches(), system)) for system in ("windows", "darwin")),
]


@pytest.mark.names_targets
@pytest.mark.parametrize(("make", "arguments"), SYSTEMS)
def test_what_speaks_to_the_system_compiles_for_each(make: Any, arguments: Any) -> None:
    """The executor and the calls of sessions: the other kernels know of no system."""
    for target in make(*arguments).values():
        for emit, parts in ((emit_executor, ("run", "work", "stop")), (emit_call, ("arrays", "bound"))):
            for part in parts:
                code = compile_object(emit(target, (part,)), target)
                assert code[:4] != b"\x7fELF"


@pytest.mark.names_targets
@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("avx512", r"vfmadd\w+ps\s.*%zmm"),
        ("avx2", r"vfmadd\w+ps\s.*%ymm"),
        ("portable", r"mulps\s.*%xmm"),
        ("neon", r"fmla\s+v\d+\.4s"),
        ("amx", "tdpbf16ps"),
    ],
)
def test_products_use_the_instructions_of_the_target(
    name: str, instruction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TARGETS[name]
    asked = kernels_of_sessions(target, monkeypatch, ["gemm", "large product"])
    kind = "bf16 tiles" if name == "amx" else "f32"
    products = [pair for pair in asked.values() if pair[0].__name__ == "emit_gemm" and pair[1].product == kind][:1]
    assert products
    assert any(re.search(instruction, compile_assembly(emit(target, spec), target)) for emit, spec in products)


_FAR_APART = """
import ctypes, mmap
from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.loading import Loader
from sardonyx.compiler.llvm.target import host_target

target = host_target("")
text = f'''target triple = "{target.triple}"
@constants = private unnamed_addr constant [4 x i64] [i64 5, i64 7, i64 11, i64 13]
define i64 @kernel(i64 %i) {{
  %p = getelementptr [4 x i64], ptr @constants, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}}'''
code = compile_object(text, target)
loader = Loader(target)
mapped = []
for turn in range(800):
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(loader.load("kernel", code))
    assert function(2) == 11
    pages = [mmap.mmap(-1, 4096) for _ in range(3)]
    pages[1].close()
    mapped += [*pages, mmap.mmap(-1, 64 << 20, prot=mmap.PROT_READ), mmap.mmap(-1, 4096 << turn * 7 % 5 % 2)]
print("loaded")
"""


@pytest.mark.skipif(not hasattr(mmap, "PROT_READ"), reason="the system maps memory in another way")
def test_constants_are_found_where_only_pages_far_away_are_free() -> None:
    """An instruction reaches 2 GB; a process that has mapped more has holes of a page here and there."""
    ran = subprocess.run([sys.executable, "-c", _FAR_APART], capture_output=True, text=True, timeout=180, check=False)
    assert ran.stdout == "loaded\n", ran.stderr
