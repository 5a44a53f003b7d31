"""The kernels that ship ready: the list of them, and packs that are compiled from it.

    python -m kernels list [--zoo DIR] [--jobs N]
    python -m kernels build DIR [TARGET …]

`list` plans the models of the zoo, Magika's and small ones for all targets and writes `kernels/list.jsonl`, which is
committed. `build` compiles it for targets: `host` (this machine's best; the default), `x86_64`, `aarch64`, or one by
its name. Machines of all targets are planned for, and code of all is generated, on any machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from kernels import building, machines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="list | build")
    one = commands.add_parser("list", help="write the list")
    one.add_argument("--zoo", type=Path, metavar="DIR", help="the models; default: where they are built")
    one.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: %(default)s")
    one.set_defaults(command=_list)
    two = commands.add_parser("build", help="compile packs")
    two.add_argument("folder", type=Path, metavar="DIR")
    two.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"host, x86_64, aarch64, {', '.join(machines.targets())}"
    )
    two.set_defaults(command=_build)
    options = parser.parse_args()
    options.command(options)


def _list(options: argparse.Namespace) -> None:
    from benchmarks.zoo import store  # what a build does without
    from kernels import collecting, examples

    try:
        found = examples.examples(options.zoo or store.default_folder())
    except examples.MissingModelError as error:
        sys.exit(str(error))
    kernels = collecting.collect(found, list(machines.targets()), options.jobs, lambda line: print(line, flush=True))
    building.write_list(kernels)
    print(f"{building.LIST.name}: {len(kernels)} kernels, {building.LIST.stat().st_size / 1e6:.1f} MB")


def _build(options: argparse.Namespace) -> None:
    try:
        targets = building.wanted(options.targets or ["host"])
    except ValueError as error:
        sys.exit(str(error))
    for name, target in targets.items():
        began = time.perf_counter()
        (pack,) = building.build(options.folder, {name: target})
        took = time.perf_counter() - began
        print(
            f"{name:<14}{pack.kernels:>6} kernels{pack.nbytes / 1e6:>8.2f} MB{took:>7.1f} s  {pack.path.name}",
            flush=True,
        )


if __name__ == "__main__":
    main()
