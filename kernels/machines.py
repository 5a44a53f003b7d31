"""The machines that kernels are made ready for: targets, and the caches and threads by which kernels are chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from sardonyx.compiler.llvm.cpu_features import AMX, AVX2, AVX512, BASELINE_X86
from sardonyx.compiler.llvm.target import Caches, Target, aarch64_targets, x86_64_targets

_KIB, _MIB = 1 << 10, 1 << 20


class Machine(NamedTuple):
    """One size of a kind of machine: its caches, and with how many threads sessions are made."""

    caches: Caches
    threads: int


def _machine(l1: float, l2: float, l3: float, threads: int) -> Machine:
    """Sizes of the caches in KiB, MiB and MiB."""
    return Machine(Caches(int(l1 * _KIB), int(l2 * _MIB), int(l3 * _MIB)), threads)


_AVX512 = frozenset({*BASELINE_X86, *AVX2, *AVX512})
_VNNI, _BF16 = frozenset({"avx512vnni"}), frozenset({"avx512bf16"})

# By the names that builders and people call them: the features, whether units take turns, and the machines.
_X86 = {
    "portable": (frozenset(BASELINE_X86), False, [_machine(32, 0.5, 8, 2)]),
    "avx2": (
        frozenset({*BASELINE_X86, *AVX2}),
        False,
        [
            _machine(32, 0.5, 32, 2),  # Zen 3 servers, and Zen 2 and 3 desktops
            _machine(32, 0.25, 8, 4),  # Haswell to Comet Lake
            _machine(48, 1.25, 24, 8),  # Alder Lake
            _machine(32, 0.5, 96, 1),  # Zen 3 with more cache
        ],
    ),
    "avx512": (_AVX512, False, [_machine(32, 1, 32, 2), _machine(32, 1, 24, 8)]),  # Skylake servers
    "avx512-vnni": (
        _AVX512 | _VNNI,
        False,
        [_machine(32, 1, 36, 2), _machine(48, 1.25, 54, 8), _machine(48, 1.25, 12, 4)],  # Cascade, Ice, Tiger Lake
    ),
    "zen4": (_AVX512 | _VNNI | _BF16, True, [_machine(32, 1, 32, 2), _machine(32, 1, 16, 8), _machine(32, 1, 96, 1)]),
    "zen5": (_AVX512 | _VNNI | _BF16, False, [_machine(48, 1, 32, 2), _machine(48, 1, 16, 8), _machine(48, 1, 96, 1)]),
    "amx": (_AVX512 | _VNNI | _BF16 | frozenset(AMX), False, [_machine(48, 2, 105, 2), _machine(48, 2, 260, 8)]),
}
_ARM = [_machine(64, 1, 32, 2), _machine(64, 2, 36, 8), _machine(64, 0.5, 4, 4)]


def targets(system: str = "linux") -> dict[str, Target]:
    """All of a system by their names, with caches that no code depends on."""
    found = {
        name: next(iter(x86_64_targets(features, Caches(), system, takes_turns=turns).values()))
        for name, (features, turns, _) in _X86.items()
    }
    return {**found, "neon": aarch64_targets(Caches(), system)["neon"]}


def machines(name: str) -> list[tuple[Target, int]]:
    """The machines of a target: with their caches, and their threads."""
    sizes = _ARM if name == "neon" else _X86[name][2]
    return [(replace(targets()[name], caches=one.caches), one.threads) for one in sizes]
