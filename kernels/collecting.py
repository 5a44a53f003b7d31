"""What is in the list of kernels: all that sessions of many models ask for, on many kinds of machines."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import sardonyx as ort
from kernels import machines, spelling
from kernels.building import Listed
from kernels.recording import Recorder
from sardonyx.compiler.llvm.installed_packs import VARIABLE as PACKS
from sardonyx.compiler.llvm.library import key_of, standing_in
from sardonyx.compiler.llvm.target import Target
from sardonyx.runtime.files.cache_folder import VARIABLE as CACHE

Inputs = Mapping[str, np.ndarray]


class Example(NamedTuple):
    """A model and what makes inputs for it, once for each set of sizes; each run adds to what is asked for."""

    name: str
    model: str | bytes
    inputs: Callable[[], Sequence[Inputs]]


class Collected(NamedTuple):
    """What an example asked for, spelled, and what went wrong on the way."""

    name: str
    kernels: list[dict[str, Any]]
    problems: list[str]


def asked_for(
    model: str | bytes, inputs: Iterable[Inputs], target: Target, threads: int
) -> tuple[dict[str, tuple[Any, Any]], str]:
    """The kernels that a session with so many threads asks for on a machine, by their keys, and what went wrong."""
    recorder, problem = Recorder(target), ""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    with standing_in(recorder):
        try:
            session = ort.InferenceSession(model, options)
            for values in inputs:
                session.run(None, dict(values))
        except Exception as error:  # steps on the host see results that mean nothing
            problem = f"{target.name}, {threads} threads: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return recorder.asked, problem


def collected(example: Example, names: Sequence[str]) -> Collected:
    """What sessions of a model ask for on all machines of these targets."""
    os.environ[CACHE] = os.environ[PACKS] = "off"  # no engine takes the place of a session
    found: dict[str, tuple[tuple[Any, Any], set[str]]] = {}
    problems = []
    inputs = example.inputs()
    for name in names:
        for (target, threads), one in itertools.product(machines.machines(name), (True, False)):
            asked, problem = asked_for(example.model, inputs, target, 1 if one else threads)
            problems += [problem] if problem else []
            for key, kernel in asked.items():
                found.setdefault(key, (kernel, set()))[1].add(name)
    kernels = [{**spelling.spelled(*kernel), "for": sorted(targets)} for kernel, targets in found.values()]
    return Collected(example.name, kernels, problems)


def collect(examples: Iterable[Example], names: Sequence[str], jobs: int, told: Callable[[str], None]) -> list[Listed]:
    """The list of all examples, in processes of their own, so that none keeps memory."""
    found: dict[str, tuple[Any, Any, set[str]]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as processes:
        for done in processes.map(collected, examples, itertools.repeat(names)):
            before = len(found)
            for one in done.kernels:
                emit, spec = spelling.read(one)
                found.setdefault(key_of(emit.__module__, emit.__qualname__, spec), (emit, spec, set()))[2].update(
                    one["for"]
                )
            told(f"{done.name:<28}{len(done.kernels):>6} kernels, {len(found) - before} of them new")
            for problem in dict.fromkeys(done.problems):
                told(f"    {problem}")
    return [Listed(emit, spec, targets) for emit, spec, targets in found.values()]
