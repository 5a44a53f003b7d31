"""Lets atheris run one target: `python -m tests.robustness.guided.driver NAME [options of libFuzzer] CORPUS`.

What of the package and its targets is imported here counts for coverage.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
from pathlib import Path

import atheris

MEMORY_BYTES = 4 << 30

with atheris.instrument_imports(include=["sardonyx"]):
    from sardonyx import log
    from tests.robustness.guided.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv[1]]
    log.set_default_severity(4)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def change(data: bytes, most: int, seed: int) -> bytes:
        choice = random.Random(seed)
        if choice.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        changed = target.changed(data, choice)
        return changed if len(changed) <= most else data

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def check(data: bytes) -> None:
            target.check(data, folder)

        atheris.Setup([sys.argv[0], *sys.argv[2:]], check, custom_mutator=change)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
