"""The ceilings of this machine: how fast it multiplies and how fast it reads, measured with kernels of our own.

    python -m benchmarks.floors [--threads 1,2] [--json FILE]

How they are measured: sardonyx/tuning/ceilings.py, whose kernels `sardonyx tune-kernels` runs as well.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from benchmarks import machine
from benchmarks import options as options_of
from sardonyx.tuning.ceilings import Ceilings as Floors
from sardonyx.tuning.ceilings import measure

__all__ = ["Floors", "measure"]


def main() -> None:
    parser = options_of.parser("floors", __doc__)
    options_of.add_threads(parser)
    options_of.add_json(parser)
    options = parser.parse_args()
    print(machine.line())
    floors = measure(options.threads)
    for count, figures in floors.compute.items():
        print(f"{count} threads, Gop/s  " + "  ".join(f"{name} {value:.0f}" for name, value in figures.items()))
        print(f"{count} threads, GB/s   " + "  ".join(f"{n} {value:.1f}" for n, value in floors.read[count].items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.facts(), "floors": asdict(floors)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
