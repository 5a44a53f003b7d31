"""Which features of the CPU kernels may use: those that it has, or fewer where the environment says so.

``SARDONYX_CPU_FEATURES`` makes a process, and those that it starts, take this machine for a lesser one: it names the
features that count, a comma between them. Everything that asks what the machine can execute asks here, so that kernels,
keys of caches, figures of `sardonyx tune-kernels` and engines are those of the lesser machine.
"""

from __future__ import annotations

import os

from sardonyx import errors

VARIABLE = "SARDONYX_CPU_FEATURES"

BASELINE_X86 = ("sse", "sse2", "cx8", "fxsr", "mmx", "x87")
AVX2 = (*BASELINE_X86, "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "avx", "avx2", "fma", "f16c", "bmi",
        "bmi2", "lzcnt", "movbe", "xsave")  # fmt: skip
AVX512 = (*AVX2, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")
AMX = ("amx-tile", "amx-bf16", "amx-int8")
NEON = ("neon", "fp-armv8")

# What the variable may name, in LLVM's spelling of features. Each word brings along what it builds on.
_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "sse2": BASELINE_X86,
        "avx2": AVX2,
        "avx512": AVX512,
        "vnni": (*AVX512, "avx512vnni"),
        "bf16": (*AVX512, "avx512bf16"),
        "amx": (*AVX512, *AMX),
    },
    "aarch64": {"neon": NEON},
}


def allowed_features(found: frozenset[str], architecture: str = "x86_64") -> frozenset[str]:
    """The features of `found`, those of a CPU, that the environment lets kernels use; all of them if it says nothing.

    InvalidArgument for a word that is unknown, or that names what the CPU lacks.
    """
    names = [name for name in os.environ.get(VARIABLE, "").lower().replace(",", " ").split() if name]
    if not names:
        return found
    words = _WORDS[architecture]
    known = ", ".join(words)
    there = ", ".join(word for word, features in words.items() if found.issuperset(features))
    for name in names:
        if name not in words:
            raise errors.InvalidArgument(
                f"the environment variable {VARIABLE} names '{name}', which is unknown on {architecture}; "
                f"known are {known}, a comma between several, of which this machine has {there}"
            )
        missing = [feature for feature in words[name] if feature not in found]
        if missing:
            raise errors.InvalidArgument(
                f"the environment variable {VARIABLE} names '{name}', but this machine lacks {', '.join(missing)}; "
                f"it has {there}, of the known {known}"
            )
    return frozenset(feature for name in names for feature in words[name])
