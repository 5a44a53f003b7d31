"""What kernels are generated for: a description of the machine, by which every kernel is parameterised.

A variant is named after its instruction set, from `portable` (SSE2) to `avx512`; extensions of the inner product
(VNNI, bf16, AMX) are flags. The machine's own description comes from its CPU features and cache sizes, never from
LLVM's name of the CPU, which can be wrong under a hypervisor.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import platform
from dataclasses import replace
from typing import TYPE_CHECKING

from sardonyx.compiler.llvm.cpu_features import AMX, AVX2, AVX512, BASELINE_X86, NEON, allowed_features
from sardonyx.light_dataclass import dataclass

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.types import Type


@dataclass(frozen=True)
class Caches:
    """Bytes of data cache that one core may count on."""

    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20


@dataclass(frozen=True)
class Target:
    """One instruction set and the sizes that kernels are tiled by.

    `vector_bits` is the width of a vector register, `registers` how many there are.
    """

    name: str
    triple: str
    features: tuple[str, ...]
    vector_bits: int
    registers: int
    has_fma: bool
    has_masks: bool  # masked loads and stores cost no more than whole ones
    has_f16_converts: bool
    has_vnni: bool = False
    has_bf16_dot: bool = False
    has_amx: bool = False
    takes_turns: bool = False  # units are half as wide as registers: half a vector takes half of the time
    caches: Caches = Caches()

    def lanes(self, scalar: Type) -> int:
        """How many elements one vector register holds."""
        return self.vector_bits // max(8, scalar.bits)

    @property
    def has_units_of_256(self) -> bool:
        """Whether a cycle multiplies two vectors of 256 bits, or half of what that is in wider registers: units of
        AVX2, and those of AVX-512 that take turns."""
        return self.takes_turns or self.vector_bits == 256

    @property
    def architecture(self) -> str:
        """``x86_64``, ``aarch64`` or what else the triple names."""
        name = self.triple.split("-")[0]
        return "aarch64" if name == "arm64" else name

    @property
    def feature_string(self) -> str:
        return ",".join(f"+{feature}" for feature in self.features)

    def function_attributes(self) -> str:
        """What every generated function declares: its features, and that vectors may fill whole registers."""
        return (
            f'nounwind "target-features"="{self.feature_string}" "prefer-vector-width"="{self.vector_bits}" '
            f'"min-legal-vector-width"="{self.vector_bits}" "no-trapping-math"="true"'
        )

    @property
    def code_key(self) -> str:
        """What the code of a kernel depends on besides its specification. The caches are not in it: whoever chooses a
        specification looks at them, and no emitter does."""
        turns = "|turns" if self.takes_turns else ""
        return f"{self.name}|{self.triple}|{self.feature_string}{turns}"

    @property
    def key(self) -> str:
        """What plans depend on: also the sizes by which work is cut."""
        return f"{self.code_key}|{self.caches}"


_CACHES = "/sys/devices/system/cpu/cpu0/cache"

_FROM_CPUINFO = {
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx_vnni": "avxvnni",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "bmi1": "bmi",
    "abm": "lzcnt",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "pni": "sse3",
}


def x86_64_targets(
    flags: frozenset[str], caches: Caches, system: str = "linux", *, takes_turns: bool = False
) -> dict[str, Target]:
    """Every variant that a CPU with these features (in LLVM's spelling) can execute, best first.

    `takes_turns`: its units are half as wide as the registers of AVX-512.
    """
    triple = {"linux": "x86_64-unknown-linux-gnu", "darwin": "x86_64-apple-darwin", "windows": "x86_64-pc-windows-msvc"}
    of = triple[system]
    targets: dict[str, Target] = {}
    if flags.issuperset(AVX512):
        plain = Target("avx512", of, AVX512, 512, 32, True, True, True, takes_turns=takes_turns, caches=caches)
        vnni = "avx512vnni" in flags
        bf16 = "avx512bf16" in flags
        amx = flags.issuperset(AMX)
        more = [name for name, there in (("avx512vnni", vnni), ("avx512bf16", bf16)) if there]
        if amx:
            tiles = (*AVX512, *more, *AMX)
            targets["amx"] = replace(plain, name="amx", features=tiles, has_vnni=vnni, has_bf16_dot=bf16, has_amx=True)
        if more:
            targets["avx512vnni"] = replace(
                plain, name="avx512vnni", features=(*AVX512, *more), has_vnni=vnni, has_bf16_dot=bf16
            )
        targets["avx512"] = plain
    if flags.issuperset(AVX2):
        targets["avx2"] = Target("avx2", of, AVX2, 256, 16, True, False, True, caches=caches)
    targets["portable"] = Target("portable", of, BASELINE_X86, 128, 16, False, False, False, caches=caches)
    return targets


def aarch64_targets(caches: Caches, system: str = "linux") -> dict[str, Target]:
    """NEON, which every AArch64 CPU has."""
    triple = {
        "linux": "aarch64-unknown-linux-gnu",
        "darwin": "arm64-apple-darwin",
        "windows": "aarch64-pc-windows-msvc",
    }
    neon = Target("neon", triple[system], NEON, 128, 32, True, False, True, caches=caches)
    return {"neon": neon}


@functools.cache
def host_targets() -> dict[str, Target]:
    """Every variant that this machine can execute and the environment allows (`cpu_features`), best first.

    InvalidArgument where the environment asks for what is not there.
    """
    caches = _host_caches()
    system = platform.system().lower()
    if platform.machine().lower() in ("aarch64", "arm64"):
        allowed_features(frozenset(NEON), "aarch64")
        return aarch64_targets(caches, system)
    return x86_64_targets(_usable_features(), caches, system, takes_turns=_takes_turns())


def host_target(name: str = "") -> Target:
    """The best variant of this machine, or the one called `name`; ValueError if it cannot execute that."""
    targets = host_targets()
    if not name:
        return next(iter(targets.values()))
    if name not in targets:
        raise ValueError(f"this machine cannot execute the instruction set '{name}'; it has {', '.join(targets)}")
    return targets[name]


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """What Linux tells of the first processor, by field; empty elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = list(itertools.takewhile(str.strip, file))
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first)}


# The family of AMD's processors whose members with AVX-512, the Zen 4, have units of 256 bits.
_ZEN_4 = "25"


def _takes_turns() -> bool:
    return _cpuinfo().get("vendor_id") == "AuthenticAMD" and _cpuinfo().get("cpu family") == _ZEN_4


def _host_features() -> frozenset[str]:
    """CPU features in LLVM's spelling: of the system where it tells (they respect the hypervisor), else of LLVM."""
    found = _cpuinfo().get("flags", "").split()
    if found:
        return frozenset({*(_FROM_CPUINFO.get(name, name) for name in found), *BASELINE_X86})
    import llvmlite.binding as llvm

    return frozenset({*(name for name, there in llvm.get_host_cpu_features().items() if there), *BASELINE_X86})


def _usable_features() -> frozenset[str]:
    """The features that kernels may use: the system grants the tiles of AMX only to those who ask."""
    features = allowed_features(_host_features())
    if features.issuperset(AMX) and not _may_use_tiles():
        features -= frozenset(AMX)
    return features


def _may_use_tiles() -> bool:
    """Ask Linux for the tile registers of AMX, once for the whole process: without that, using them ends it."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None, use_errno=True).syscall(arch_prctl, request_permission, tile_data)) == 0


def _line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def _host_caches() -> Caches:
    """Sizes of the data caches as Linux shows them; careful defaults elsewhere."""
    sizes: dict[int, int] = {}
    try:
        caches = [one for one in os.listdir(_CACHES) if one.startswith("index")]
    except OSError:
        caches = []
    for one in caches:
        try:
            if _line(f"{_CACHES}/{one}/type") == "Instruction":
                continue
            level = int(_line(f"{_CACHES}/{one}/level"))
            text = _line(f"{_CACHES}/{one}/size")
        except (OSError, ValueError):
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        sizes[level] = int(text.rstrip("KMG")) * unit
    default = Caches()
    return Caches(sizes.get(1, default.l1), sizes.get(2, default.l2), sizes.get(3, default.l3))
