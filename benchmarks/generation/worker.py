"""One engine in a process of its own: makes its model, then generates each time it is told to.

    python -m benchmarks.generation.worker JOB

JOB is JSON (`engines.Job`). A line on the input is a cell as JSON (`rows.Cell`); the answer is a line of JSON:
`seconds` of the whole call, `tokens` of the first row, `first`, the seconds until the first token (null where nobody
looked), `native`, those in runs of the model (of our decoders alone), `before` and `peak`, the resident bytes behind
the imports and at most. The interpreter is that of the engine's environment.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.generation import engines
from benchmarks.generation.rows import OURS, Cell


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    job = engines.Job(**json.loads(sys.argv[1]))
    if job.engine == OURS:
        import sardonyx.api.session
        import sardonyx.models.generation.loop  # noqa: F401
    before = _resident()
    call = engines.start(job)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        cell = Cell(**json.loads(line))
        given = engines.given(job, cell)
        start = time.perf_counter()
        found = call(given, cell)
        seconds = time.perf_counter() - start
        answer = {
            "seconds": seconds,
            "tokens": found.tokens.tolist(),
            "first": found.first,
            "native": found.native,
            "before": before,
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
