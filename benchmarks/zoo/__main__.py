"""Build the models of the zoo that are missing, check them, and write what tests and benchmarks need beside them.

    python -m benchmarks.zoo [--out DIR] [NAME …]

Each model gets a folder DIR/NAME with `model.onnx` (and its external data), `test_data_set_0/` at the usual sizes,
`test_data_set_1/` at other sizes where a dimension is symbolic, and `info.json`.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

from benchmarks.zoo import registry, store


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(registry.names())}")
    parser.add_argument("--out", type=Path, default=store.default_folder(), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--force", action="store_true", help="build again what is there")
    options = parser.parse_args()
    for name in options.names:
        if name not in registry.names():
            parser.error(f"there is no model {name!r}; there are {', '.join(registry.names())}")
    warnings.filterwarnings("ignore", module="torch|transformers|onnxscript|copyreg")

    print(f"{'model':<28}{'opset':>6}{'MB':>8}{'nodes':>7}{'params M':>10}{'GMACs':>9}{'error':>10}{'seconds':>9}")
    for name in options.names or registry.names():
        start = time.perf_counter()
        if options.force:
            store.free(name, options.out)
        info = json.loads((store.ensure(name, options.out) / "info.json").read_text())
        print(
            f"{info['name']:<28}{info['opset']:>6}{info['bytes'] / 1e6:>8.1f}{info['nodes']:>7}"
            f"{info['parameters'] / 1e6:>10.2f}{info['macs'] / 1e9:>9.3f}{info['error']:>10.1e}"
            f"{time.perf_counter() - start:>9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
