"""A program that makes a session and runs it where address space is scarce, and tells how that ended.

    python -m benchmarks.scarce_program JSON

It is run by `benchmarks.address_space`, in a process of its own. Before the limit holds nothing is imported that the
engine would have to import. The JSON object says:

    engine   a module with onnxruntime's API
    model    the path of a model, or of an engine file
    data     the path of an .npz file: `name:0` and `name:1` are inputs for a first run and for one of other sizes,
             `index=0` and `index=1` the outputs
    threads  of a run
    at       where the limit (RLIMIT_AS) begins to hold: a name of `STAGES`
    bytes    the limit; below 0 so many bytes above what the process has then

The last line of the output is a JSON object. `outcome` is `right`, `wrong`, `typed` (an error of the engine's own
classes) or `bare` (another one), at the `stage` that failed. `recovers` says whether the same works once the limit is
lifted. Before each stage its name is printed, so that one can see where a process died.
"""

from __future__ import annotations

import json
import os
import resource
import sys

STAGES = ("numpy", "import", "session", "run", "shape")


def space() -> int:
    """Bytes of address space that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit(nbytes: int) -> None:
    most = space() - nbytes if nbytes < 0 else nbytes
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def lift() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Program:
    """The stages; each works once those before it have."""

    def __init__(self, asked: dict) -> None:
        self.asked = asked

    def do(self, stage: str) -> None:
        getattr(self, f"_{stage}")()

    def _numpy(self) -> None:
        import numpy as np

        with np.load(self.asked["data"]) as data:
            self.data = dict(data)

    def _import(self) -> None:
        import importlib

        self.engine = importlib.import_module(self.asked["engine"])

    def _session(self) -> None:
        options = self.engine.SessionOptions()
        options.intra_op_num_threads = self.asked["threads"]
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        for key, value in self.asked.get("config", {}).items():
            options.add_session_config_entry(key, value)
        self.session = self.engine.InferenceSession(self.asked["model"], options, providers=["CPUExecutionProvider"])

    def _run(self) -> None:
        self._check("0")

    def _shape(self) -> None:
        self._check("1")

    def _check(self, number: str) -> None:
        import numpy as np

        feeds = {key[:-2]: value for key, value in self.data.items() if key.endswith(":" + number)}
        results = self.session.run(None, feeds)
        for index, result in enumerate(results):
            expected = self.data[f"{index}={number}"]
            if result.shape != expected.shape or not np.allclose(result, expected, rtol=1e-3, atol=1e-4):
                raise WrongError


class WrongError(Exception):
    """A result is not what it should be."""


def is_typed(error: BaseException, engine: str) -> bool:
    """Whether an error is of the classes that callers of onnxruntime catch."""
    if engine == "sardonyx":
        from sardonyx.errors import OnnxRuntimeError

        return isinstance(error, OnnxRuntimeError)
    return type(error).__module__.startswith(engine + ".")


def outcome(asked: dict) -> dict:
    program = Program(asked)
    for stage in STAGES:
        if asked["at"] == stage:
            limit(asked["bytes"])
        os.write(1, f"\n{stage}".encode())
        try:
            program.do(stage)
        except WrongError:
            return {"outcome": "wrong", "stage": stage}
        except BaseException as error:
            lift()
            found = {
                "outcome": "typed" if is_typed(error, asked["engine"]) else "bare",
                "stage": stage,
                "error": f"{type(error).__name__}: {error}",
            }
            del error
            try:
                for again in STAGES[STAGES.index(stage) :]:
                    program.do(again)
                found["recovers"] = True
            except BaseException as second:
                found["recovers"], found["second"] = False, f"{type(second).__name__}: {second}"
            return found
    return {"outcome": "right", "stage": "", **memory()}


def memory() -> dict:
    """MB at most: of address space, and of memory."""
    with open("/proc/self/status", encoding="ascii") as file:
        found = dict(line.split(":", 1) for line in file)
    return {name: int(found[name].split()[0]) / 1024 for name in ("VmPeak", "VmHWM")}


def main() -> None:
    found = outcome(json.loads(sys.argv[1]))
    lift()
    sys.stdout.flush()
    os.write(1, b"\n" + json.dumps(found).encode() + b"\n")


if __name__ == "__main__":
    main()
