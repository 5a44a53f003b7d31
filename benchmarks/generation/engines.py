"""The engines of generation: each makes a model of a folder, then calls it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generation import models
from benchmarks.generation.rows import DECODER, GENAI, OPTIMUM, OURS, SOUND, TEXT, TORCH, Cell

Array = np.ndarray[Any, Any]

SOUND_SECONDS = 30


@dataclass(frozen=True)
class Job:
    """An engine with the model of a folder; `kind` is that of a row."""

    engine: str
    kind: str
    folder: str
    threads: int


@dataclass
class Result:
    """The tokens of a call's first row, when the first one came, and the seconds in runs of the model, if known."""

    tokens: Array
    first: float | None = None
    native: float | None = None


# A call for a cell's input: ids (1, tokens), or samples of sound (samples,).
Call = Callable[[Array, Cell], Result]


def start(job: Job) -> Call:
    """The engine's model, ready to be called."""
    return _STARTS[job.engine](job)


def given(job: Job, cell: Cell) -> Array:
    """What a cell's call is given: the same numbers of chance for all engines."""
    chance = np.random.default_rng(0)
    if job.kind == SOUND:
        return chance.standard_normal(SOUND_SECONDS * 16000, np.float32) * np.float32(0.1)
    config = json.loads((Path(job.folder) / "config.json").read_text())
    return chance.integers(3, config["vocab_size"], (1, cell.prompt))


class Watch:
    """A streamer of transformers' kind that looks when the first token comes."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._calls = 0
        self.first: float | None = None

    def put(self, value: Any) -> None:
        self._calls += 1
        if self._calls == 2:  # the first call is the prompt
            self.first = time.perf_counter() - self._start

    def end(self) -> None:
        """Nothing."""


def sardonyx(job: Job) -> Call:
    """The classes of `sardonyx.models`; for decoders its loop, with a look at the runs of the model."""
    from sardonyx.api.options.session_options import SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = job.threads
    if job.kind == DECODER:
        return _own_loop(job, options)
    import benchmarks.zoo.architectures  # noqa: F401  torchvision, as transformers needs it
    import sardonyx.models as classes

    return _of_transformers(_opened(classes, job, options), job)


def _own_loop(job: Job, options: Any) -> Call:
    from sardonyx.models.generation.bound_step import SingleStep
    from sardonyx.models.generation.decoder import Decoder
    from sardonyx.models.generation.loop import generate
    from sardonyx.models.generation.settings import Settings

    folder = Path(job.folder)
    config = json.loads((folder / "config.json").read_text())
    decoder = Decoder.open(folder / "model.onnx", config, session_options=options)
    spent, inside = [0.0], [False]
    run_bound, run = decoder.session.run_with_iobinding, decoder.session.run

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if inside[0]:  # as the first run of a step
                return function(*arguments)
            inside[0] = True
            begin = time.perf_counter()
            result = function(*arguments)
            spent[0] += time.perf_counter() - begin
            inside[0] = False
            return result

        return call

    decoder.session.run_with_iobinding = timed(run_bound)  # type: ignore[method-assign]
    decoder.session.run = timed(run)  # type: ignore[method-assign]
    SingleStep.run = timed(SingleStep.run)  # type: ignore[method-assign]

    def once(ids: Array, cell: Cell) -> Result:
        spent[0] = 0.0
        watch = Watch() if cell.beams == 1 else None
        settings = Settings(max_new_tokens=cell.new, num_beams=cell.beams)
        tokens = generate(decoder, ids, settings, streamer=watch, gives_cache=False).sequences
        return Result(tokens[0], watch.first if watch else None, spent[0])

    return once


def optimum(job: Job) -> Call:
    """Optimum's class on what is called onnxruntime there."""
    import onnxruntime
    from optimum import onnxruntime as classes

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    return _of_transformers(_opened(classes, job, options), job)


def torch(job: Job) -> Call:
    """The torch module that the file is of, eagerly."""
    import torch as module

    import benchmarks.zoo.architectures  # noqa: F401  torchvision, as transformers needs it

    module.set_num_threads(job.threads)
    if job.kind == DECODER and not (Path(job.folder) / "model.safetensors").exists():
        from benchmarks.zoo import registry

        return _of_transformers(registry.torch_module(registry.get(models.GPT2)).model, job)
    import transformers

    name = "AutoModelForCausalLM" if job.kind == DECODER else "AutoModelForSeq2SeqLM"
    return _of_transformers(getattr(transformers, name).from_pretrained(job.folder).eval(), job)


def genai(job: Job) -> Call:
    """The generator of onnxruntime-genai."""
    import onnxruntime_genai

    config = onnxruntime_genai.Config(job.folder)
    threads = {"session_options": {"intra_op_num_threads": job.threads}}
    config.overlay(json.dumps({"model": {"decoder": threads}}))
    model = onnxruntime_genai.Model(config)

    def once(ids: Array, cell: Cell) -> Result:
        begin = time.perf_counter()
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=cell.prompt + cell.new, num_beams=cell.beams)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(ids.astype(np.int32))
        generator.generate_next_token()
        first = time.perf_counter() - begin
        for _ in range(cell.new - 1):
            generator.generate_next_token()
        return Result(np.asarray(generator.get_sequence(0)), first)

    return once


_STARTS: dict[str, Callable[[Job], Call]] = {OURS: sardonyx, OPTIMUM: optimum, TORCH: torch, GENAI: genai}
_CLASSES = {DECODER: "ORTModelForCausalLM", TEXT: "ORTModelForSeq2SeqLM", SOUND: "ORTModelForSpeechSeq2Seq"}


def _opened(classes: Any, job: Job, options: Any) -> Any:
    return getattr(classes, _CLASSES[job.kind]).from_pretrained(job.folder, session_options=options)


def _of_transformers(model: Any, job: Job) -> Call:
    """`generate` of transformers' kind; of sound with the spectrum that the model is given."""
    import torch as module

    if job.kind == SOUND:
        return _transcribing(model)

    def once(ids: Array, cell: Cell) -> Result:
        tensor = module.from_numpy(ids)
        watch = Watch() if cell.beams == 1 else None
        with module.inference_mode():
            tokens = model.generate(
                tensor,
                attention_mask=module.ones_like(tensor),
                max_new_tokens=cell.new,
                do_sample=False,
                num_beams=cell.beams,
                pad_token_id=0,
                eos_token_id=None,
                streamer=watch,
            )
        return Result(tokens[0].numpy(), watch.first if watch else None)

    return once


def _transcribing(model: Any) -> Call:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor()

    def once(sound: Array, cell: Cell) -> Result:
        features = extractor(sound, sampling_rate=16000, return_tensors="pt").input_features
        settings = {"language": "en", "task": "transcribe", "max_new_tokens": cell.new}
        tokens = model.generate(features, num_beams=cell.beams, **settings)
        return Result(tokens[0].numpy())

    return once
