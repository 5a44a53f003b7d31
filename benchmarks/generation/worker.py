"""One engine in a process of its own: makes its model, then generates each time it is told to.

    python -m benchmarks.generation.worker JOB

JOB is JSON (`Job`). A line on the input asks for a run; the answer is a line of JSON: `seconds` of the whole call,
`tokens` of the first row, `peak` and `before`, the resident bytes at most and behind the imports, and for our engine
`native`, the seconds in runs of the model. The interpreter is that of the engine's environment.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """What is to be generated: `new` tokens behind a prompt of `prompt` random ones, with so many beams."""

    engine: str
    folder: str
    prompt: int
    new: int
    beams: int
    threads: int


# Generates for ids (1, tokens): the tokens, and what else there is to tell.
Generate = Callable[[Any], tuple[Any, dict[str, float]]]


def sardonyx(job: Job) -> Generate:
    """Our loop over a decoder."""
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.models.generation.decoder import Decoder
    from sardonyx.models.generation.loop import generate
    from sardonyx.models.generation.settings import Settings

    options = SessionOptions()
    options.intra_op_num_threads = job.threads
    folder = Path(job.folder)
    decoder = Decoder.open(
        folder / "model.onnx", json.loads((folder / "config.json").read_text()), session_options=options
    )
    settings = Settings(max_new_tokens=job.new, num_beams=job.beams)
    spent = [0.0]
    run_bound, run = decoder.session.run_with_iobinding, decoder.session.run

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            spent[0] += time.perf_counter() - start
            return result

        return call

    decoder.session.run_with_iobinding = timed(run_bound)  # type: ignore[method-assign]
    decoder.session.run = timed(run)  # type: ignore[method-assign]

    def once(ids: Any) -> tuple[Any, dict[str, float]]:
        spent[0] = 0.0
        tokens = generate(decoder, ids, settings).sequences
        return tokens, {"native": spent[0]}

    return once


def optimum(job: Job) -> Generate:
    """Optimum's class on what is called onnxruntime there."""
    import onnxruntime
    from optimum.onnxruntime import ORTModelForCausalLM

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    model = ORTModelForCausalLM.from_pretrained(job.folder, session_options=options)
    return _of_transformers(model, job)


def torch(job: Job) -> Generate:
    """The torch module that the file is of, eagerly."""
    import torch as module

    from benchmarks.generation.models import GPT2
    from benchmarks.zoo import registry

    module.set_num_threads(job.threads)
    return _of_transformers(registry.torch_module(registry.get(GPT2)).model, job)


def _of_transformers(model: Any, job: Job) -> Generate:
    import torch as module

    def once(ids: Any) -> tuple[Any, dict[str, float]]:
        given = module.from_numpy(ids)
        with module.inference_mode():
            tokens = model.generate(
                given,
                attention_mask=module.ones_like(given),
                max_new_tokens=job.new,
                do_sample=False,
                num_beams=job.beams,
                pad_token_id=0,
                eos_token_id=None,
            )
        return tokens.numpy(), {}

    return once


ENGINES: dict[str, Callable[[Job], Generate]] = {"sardonyx": sardonyx, "optimum": optimum, "torch": torch}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    import numpy as np

    if job.engine == "sardonyx":
        import sardonyx.api.session
        import sardonyx.models.generation.loop  # noqa: F401
    before = _resident()
    generate = ENGINES[job.engine](job)
    ids = np.random.default_rng(0).integers(1, 50000, (1, job.prompt))
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        tokens, told = generate(ids)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer = {"seconds": seconds, "tokens": tokens[0].tolist(), "before": before, "peak": peak, **told}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
