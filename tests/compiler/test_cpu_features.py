"""Which instruction sets are used where the environment lets kernels use fewer than the machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import sardonyx
from sardonyx import errors
from sardonyx.compiler.llvm import target as targets
from sardonyx.compiler.llvm.cpu_features import AMX, AVX2, AVX512, BASELINE_X86, NEON, VARIABLE, allowed_features
from sardonyx.compiler.llvm.target import Caches, Target, host_targets, x86_64_targets
from sardonyx.datasets import get_example

pytestmark = pytest.mark.machine_neutral

ALL = frozenset((*AVX512, "avx512vnni", "avx512bf16", *AMX))


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the machine can execute is known once in a process; here it is found anew."""
    monkeypatch.delenv(VARIABLE, raising=False)
    host_targets.cache_clear()
    yield
    host_targets.cache_clear()


@pytest.mark.parametrize(
    ("names", "variants", "vnni", "bf16"),
    [
        ("", ["amx", "avx512vnni", "avx512", "avx2", "portable"], True, True),
        (" ", ["amx", "avx512vnni", "avx512", "avx2", "portable"], True, True),
        ("sse2", ["portable"], False, False),
        ("avx2", ["avx2", "portable"], False, False),
        ("AVX2,sse2", ["avx2", "portable"], False, False),
        ("avx512", ["avx512", "avx2", "portable"], False, False),
        ("vnni", ["avx512vnni", "avx512", "avx2", "portable"], True, False),
        ("avx512, bf16", ["avx512vnni", "avx512", "avx2", "portable"], False, True),
        ("vnni bf16", ["avx512vnni", "avx512", "avx2", "portable"], True, True),
        ("amx", ["amx", "avx512", "avx2", "portable"], False, False),
        ("amx,vnni,bf16", ["amx", "avx512vnni", "avx512", "avx2", "portable"], True, True),
    ],
)
def test_variants(names: str, variants: list[str], vnni: bool, bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, names)
    found = x86_64_targets(allowed_features(ALL), Caches())
    assert list(found) == variants
    best = next(iter(found.values()))
    assert (best.has_vnni, best.has_bf16_dot, best.has_amx) == (vnni, bf16, "amx" in variants)


@pytest.mark.parametrize(
    ("names", "there", "words"),
    [
        ("avx3", ALL, "names 'avx3', which is unknown on x86_64; known are sse2, avx2, avx512, vnni, bf16, amx"),
        ("avx2,neon", ALL, "names 'neon', which is unknown"),
        (
            "avx512",
            frozenset(AVX2),
            "names 'avx512', but this machine lacks avx512f.*; it has sse2, avx2, of the known",
        ),
        ("avx2,amx", frozenset(AVX512), "names 'amx', but this machine lacks amx-tile, amx-bf16, amx-int8; it has"),
        ("avx2", frozenset(BASELINE_X86), "names 'avx2', but this machine lacks sse3.*; it has sse2, of the known"),
    ],
)
def test_refused(names: str, there: frozenset[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, names)
    with pytest.raises(errors.InvalidArgument, match=f"{VARIABLE} {words}"):
        allowed_features(there)


def test_other_architectures_have_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "neon")
    assert allowed_features(frozenset(NEON), "aarch64") == frozenset(NEON)
    monkeypatch.setenv(VARIABLE, "avx2")
    with pytest.raises(errors.InvalidArgument, match="unknown on aarch64; known are neon"):
        allowed_features(frozenset(NEON), "aarch64")


def test_tiles_that_may_not_be_used_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(targets, "_host_features", lambda: ALL)
    monkeypatch.setattr(targets, "_may_use_tiles", lambda: bool(asked.append(1)))
    assert not targets._usable_features() & frozenset(AMX)
    assert asked
    asked.clear()
    monkeypatch.setenv(VARIABLE, "avx512")
    assert targets._usable_features() == frozenset(AVX512)
    assert not asked


def lesser() -> Target:
    """The plainest variant of this machine, which is not the best one of most."""
    return [*host_targets().values()][-1]


WORDS = {"portable": "sse2", "neon": "neon"}

PROGRAM = """
import numpy as np, sardonyx
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.choice.tuned import stored_numbers
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.datasets import get_example

session = sardonyx.InferenceSession(get_example("sigmoid.onnx"))
session.run(None, {"x": np.ones((3, 4, 5), np.float32)})
assert explain(session).kernels == library("", "runtime").target.name == library().target.name
print(*host_targets(), stored_numbers())
"""


def test_all_of_a_process_takes_the_machine_for_a_lesser_one() -> None:
    """Models, the runtime's own code, and what was measured of the machine that it is, which is not the lesser one."""
    name = lesser().name
    environment = {**os.environ, VARIABLE: WORDS[name]}
    run = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [name, "{}"]


def test_sessions_refuse_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mmx2")
    with pytest.raises(errors.InvalidArgument, match=f"{VARIABLE} names 'mmx2', which is unknown"):
        sardonyx.InferenceSession(get_example("sigmoid.onnx"))
    environment = {**os.environ, VARIABLE: "mmx2"}
    run = [sys.executable, "-m", "sardonyx.cli.main", "info", str(get_example("sigmoid.onnx"))]
    found = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"{VARIABLE} names 'mmx2'" in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


def test_a_session_cannot_ask_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, WORDS[lesser().name])
    host_targets.cache_clear()
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", "avx512vnni")
    with pytest.raises(errors.InvalidArgument, match=f"instruction set 'avx512vnni'; it has {lesser().name}"):
        sardonyx.InferenceSession(get_example("sigmoid.onnx"), options)
