"""Outputs that come before the run has ended."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.api import session_opening
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.api.running import results
from sardonyx.compiler.segment import Segment
from sardonyx.runtime.threads.thread_pool import ThreadPool
from tests.api.test_interrupts import FOR_EVER

Array = np.ndarray[Any, Any]
PATIENCE = 180.0


def model(graph: str, functions: str = "") -> bytes:
    text = f'<ir_version: 9, opset_import: ["" : 20]> {graph} {functions}'
    return onnx.parser.parse_model(textwrap.dedent(text)).SerializeToString()


# Two heads, the second behind more layers; `hidden` is read by what comes after it.
HEADS = model("""
agraph (float[n, 64] x, float[64, 64] a, float[64, 64] b)
    => (float[n, 64] last, float[n, 64] early, float[n, 64] hidden) {
  first = MatMul(x, a)
  hidden = Tanh(first)
  early = Softmax(hidden)
  second = MatMul(hidden, b)
  third = Softmax(second)
  fourth = MatMul(third, a)
  last = Softmax(fourth)
}""")
# The same for columns: heads are transposed, which takes a copy.
VIEWS = model("""
agraph (float[n, 64] x, float[64, 64] a, float[64, 64] b) => (float[64, n] last, float[64, n] early) {
  first = MatMul(x, a)
  early = Transpose(first)
  second = MatMul(first, b)
  third = Softmax(second)
  fourth = MatMul(third, b)
  last = Transpose(fourth)
}""")
# An output that is there at once, and one after so many rounds.
LOOP = model("""
agraph (int64 rounds, float[64] x) => (float[64] early, float[64] y) {
  early = Neg(x)
  go = Constant <value = bool {1}> ()
  y = Loop <body = round (int64 number, bool before, float[64] sum) => (bool again, float[64] more) {
    again = Identity(before)
    one = Constant <value_float = 1.0> ()
    more = Add(sum, one)
  }> (rounds, go, early)
}""")
# The second output needs an index that may be wrong.
INDEX = model("""
agraph (float[8, 4] x, int64[n] index) => (float[8, 4] early, float[n, 4] y) {
  early = Softmax(x)
  some = Gather(early, index)
  y = Softmax(some)
}""")


def session(content: bytes = HEADS, threads: int = 1, **entries: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return ort.InferenceSession(content, options)


def feed(rows: int = 5, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (rows, 64), "a": (64, 64), "b": (64, 64)}
    return {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}


def check(made: ort.InferenceSession, given: dict[str, Any], names: list[str] | None = None) -> list[str]:
    """Both ways give the same bits; the names in the order in which they came."""
    wanted = made.run(names, given)
    expected = dict(zip(names or [one.name for one in made.get_outputs()], wanted, strict=True))
    came = list(made.run_streamed(names, given))
    assert len(came) == len(wanted)
    for name, value in came:
        same(value, expected[name])
    return [name for name, _ in came]


def same(value: Any, expected: Any) -> None:
    assert type(value) is type(expected)
    if isinstance(value, list):
        for one, other in zip(value, expected, strict=True):
            same(one, other)
    elif isinstance(value, np.ndarray):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        assert value.tobytes() == expected.tobytes()
    else:
        assert value == expected


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], threading.Event]]:
    """Gives an event for which native code waits after so many calls of it."""
    events: list[threading.Event] = []

    def hold_up(calls: int) -> threading.Event:
        event, left = threading.Event(), [calls]
        run = ThreadPool.run_packed
        events.append(event)

        def waiting(self: ThreadPool, *given: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                assert event.wait(PATIENCE)
            return run(self, *given)

        monkeypatch.setattr(ThreadPool, "run_packed", waiting)
        return event

    yield hold_up
    for event in events:
        event.set()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernels", ["", "numpy"])
def test_outputs_come_as_they_are_computed(kernels: str, threads: int) -> None:
    made = session(threads=threads, **({"sardonyx__cpu__kernels": kernels} if kernels else {}))
    for rows in (1, 5, 300, 5):
        assert check(made, feed(rows)) == ["hidden", "early", "last"]
    assert check(made, feed(), ["last", "early"]) == ["early", "last"]
    assert check(made, feed(), ["early"]) == ["early"]
    assert check(made, feed(), ["last", "early", "last"]) == ["early", "last", "last"]


def test_an_output_comes_while_later_native_steps_wait(held_up: Callable[[int], threading.Event]) -> None:
    made = session()
    expected = dict(zip(["last", "early", "hidden"], made.run(None, feed()), strict=True))
    may_go_on = held_up(2)
    stream = made.run_streamed(["last", "early", "hidden"], feed())
    for wanted in ("hidden", "early"):
        name, value = next(stream)
        assert name == wanted
        same(value, expected[name])
    may_go_on.set()
    assert [name for name, _ in stream] == ["last"]


def test_a_copied_output_comes_early_too(held_up: Callable[[int], threading.Event]) -> None:
    made = session(VIEWS)
    check(made, feed())
    may_go_on = held_up(1)
    stream = made.run_streamed(None, feed())
    assert next(stream)[0] == "early"
    may_go_on.set()
    assert next(stream)[0] == "last"


def test_an_output_comes_while_a_later_host_step_waits() -> None:
    made = session(sardonyx__cpu__kernels="numpy")
    plan = made._session().plan
    last, may_go_on = plan.steps[-1], threading.Event()
    call = last.call

    def waiting(*given: Any) -> Any:
        assert may_go_on.wait(PATIENCE)
        return call(*given)

    object.__setattr__(last, "call", waiting)
    stream = made.run_streamed(None, feed())
    assert [next(stream)[0], next(stream)[0]] == ["hidden", "early"]
    may_go_on.set()
    assert [name for name, _ in stream] == ["last"]
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", ["close", "with", "del", "terminate"])
def test_letting_go_ends_the_run(way: str, threads: int) -> None:
    made, options = session(LOOP, threads), ort.RunOptions()
    given = {"rounds": np.array(FOR_EVER), "x": np.ones(64, np.float32)}
    stream = made.run_streamed(None, given, options)
    thread = stream._thread
    name, value = next(stream)
    assert name == "early"
    same(value, -given["x"])
    assert thread.is_alive()
    if way == "close":
        stream.close()
        assert list(stream) == []
    elif way == "with":
        with stream:
            pass
    elif way == "del":
        del stream
        gc.collect()
        thread.join(PATIENCE)
    else:
        options.terminate = True
        with pytest.raises(errors.Fail, match="Exiting due to terminate flag being set to true"):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
    assert not thread.is_alive()
    assert options.terminate == (way == "terminate")
    check(made, given | {"rounds": np.array(3)})


def test_the_interpreter_ends_without_waiting() -> None:
    program = f"""
        import numpy as np
        from tests.api.test_streamed_run import FOR_EVER, LOOP, session
        stream = session(LOOP).run_streamed(None, {{"rounds": np.array({FOR_EVER}), "x": np.ones(64, np.float32)}})
        print(next(stream)[0])
        raise SystemExit(3)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "early\n"), done.stderr


def test_arguments_are_checked_at_once() -> None:
    made = session()
    with pytest.raises(ValueError, match="Required inputs"):
        made.run_streamed(None, {})
    with pytest.raises(errors.InvalidArgument, match="Invalid output name:other"):
        made.run_streamed(["other"], feed())
    with pytest.raises(errors.InvalidArgument, match="Invalid input name: other"):
        made.run_streamed(None, feed() | {"other": np.ones(1)})
    with pytest.raises(errors.InvalidArgument, match="Unexpected input data type"):
        made.run_streamed(None, feed() | {"x": np.ones((1, 64))})
    with pytest.raises(TypeError, match="RunOptions"):
        made.run_streamed(None, feed(), 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="output names"):
        made.run_streamed("last", feed())


@pytest.mark.parametrize("kernels", ["", "numpy"])
def test_an_error_comes_after_what_was_computed_before(kernels: str) -> None:
    made = session(INDEX, **({"sardonyx__cpu__kernels": kernels} if kernels else {}))
    given = {"x": np.eye(8, 4, dtype=np.float32), "index": np.array([0, 3])}
    assert check(made, given) == ["early", "y"]
    given["index"] = np.array([0, 99])
    with pytest.raises(errors.OnnxRuntimeError) as expected:
        made.run(None, given)
    stream = made.run_streamed(None, given)
    assert next(stream)[0] == "early"
    with pytest.raises(type(expected.value)) as found:
        next(stream)
    assert str(found.value) == str(expected.value)
    assert list(stream) == []


def test_whoever_changes_an_output_changes_no_other() -> None:
    made = session()
    expected = made.run(None, feed())
    found = {}
    for name, value in made.run_streamed(None, feed()):
        found[name] = value.copy()
        value[...] = np.nan
    assert found.keys() == {"last", "early", "hidden"}
    for one, other in zip(expected, (found[name] for name in ("last", "early", "hidden")), strict=True):
        same(one, other)


def test_branches_read_an_output_that_is_there_already(held_up: Callable[[int], threading.Event]) -> None:
    made = session(
        model("""
        agraph (float[n, 4] x, bool flag) => (float[n, 4] early, float[n, 4] y) {
          early = Softmax(x)
          y = If (flag) <
            then_branch = yes () => (float[n, 4] a) { a = Neg(early) },
            else_branch = no () => (float[n, 4] b) { b = Exp(early) }
          >
        }""")
    )
    given = {"x": np.ones((3, 4), np.float32), "flag": np.array(True)}
    assert check(made, given) == ["early", "y"]
    expected = made.run(None, given)
    may_go_on = held_up(1)
    stream = made.run_streamed(None, given)
    _, early = next(stream)
    same(early, expected[0])
    early[...] = np.nan
    may_go_on.set()
    same(next(stream)[1], expected[1])


@pytest.mark.parametrize("kernels", ["", "numpy"])
def test_only_outputs_that_are_read_later_are_copied(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(**({"sardonyx__cpu__kernels": kernels} if kernels else {}))
    check(made, feed(1000))
    copied: list[int] = []
    monkeypatch.setattr(results, "require", lambda nbytes, what: copied.append(nbytes))
    for _ in made.run_streamed(None, feed(1000)):
        pass
    assert copied == [4 * 64 * 1000]


def test_outputs_that_no_step_makes() -> None:
    made = session(
        model("""
        agraph (float[n, 4] x) => (float[n, 4] same, float[2] fixed, int64[2] size, float[n, 4] y, float[n, 4] again) {
          same = Identity(x)
          fixed = Constant <value_floats = [1.0, 2.0]> ()
          size = Shape(x)
          y = Softmax(x)
          again = Identity(y)
        }""")
    )
    for rows in (3, 0):
        given = {"x": np.ones((rows, 4), np.float32)}
        assert set(check(made, given)) == {"same", "fixed", "size", "y", "again"}
        for _, value in made.run_streamed(None, given):
            value[...] = 7
        check(made, given)
        assert (given["x"] == 1).all()


def test_sequences_and_bytes_of_small_floats() -> None:
    made = session(
        model("""
        agraph (float[4] x) => (seq(float[4]) pair, float8e4m3fn[4] small, optional(float[4]) maybe) {
          y = Neg(x)
          pair = SequenceConstruct(x, y)
          small = Cast <to = 17> (y)
          maybe = Optional(y)
        }""")
    )
    check(made, {"x": np.ones(4, np.float32)})


def test_many_at_once() -> None:
    made = session(threads=2)
    expected = [made.run(None, feed(4 + seed % 3, seed)) for seed in range(24)]

    def streamed(seed: int) -> dict[str, Array]:
        return dict(made.run_streamed(None, feed(4 + seed % 3, seed)))

    with ThreadPoolExecutor(6) as pool:
        plain = [pool.submit(made.run, None, feed(4 + seed % 3, seed)) for seed in range(24)]
        for seed, found in enumerate(pool.map(streamed, range(24))):
            assert found.keys() == {"last", "early", "hidden"}
            for name, value in zip(("last", "early", "hidden"), expected[seed], strict=True):
                same(found[name], value)
        for one, other in zip(plain, expected, strict=True):
            same(one.result(), other)


def test_batches_in_rounds() -> None:
    content = model("""
        agraph (float[n, 3, 8, 8] x) => (float[n, 3, 8, 8] last, float[n, 3, 8, 8] early) {
          early = Softmax(x)
          next = Exp(early)
          last = Softmax(next)
        }""")
    given = {"x": np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)}
    assert check(session(content, sardonyx__cpu__batch_items="2"), given) in (["early", "last"], ["last", "early"])


def test_symbolic_plans_know_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    for rows in (2, 3, 4):
        check(made, feed(rows))
    monkeypatch.setattr(Segment, "_bind_all", None)
    for rows in (5, 6):
        assert check(made, feed(rows)) == ["hidden", "early", "last"]


def test_an_engine_knows_the_order(tmp_path: Path) -> None:
    (tmp_path / "heads.onnx").write_bytes(HEADS)
    compile_engine(str(tmp_path / "heads.onnx"), tmp_path / "heads.engine", sizes={"n": 5})
    made = ort.InferenceSession(tmp_path / "heads.engine")
    assert made._session()._is_stored
    assert check(made, feed()) == ["hidden", "early", "last"]


def test_a_profile_tells_of_every_step(tmp_path: Path) -> None:
    names: list[list[str]] = []
    for kernels in ("", "numpy"):
        for run in (ort.InferenceSession.run, lambda *given: list(ort.InferenceSession.run_streamed(*given))):
            options = ort.SessionOptions()
            options.enable_profiling = True
            options.profile_file_prefix = str(tmp_path / f"profile{len(names)}")
            if kernels:
                options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
            made = ort.InferenceSession(HEADS, options)
            run(made, None, feed())
            events = json.loads(Path(made.end_profiling()).read_text())
            names.append(
                [f"{event['name']} {event['args'].get('output_size')}" for event in events if event["cat"] != "Compile"]
            )
    assert names[0] == names[1]
    assert names[2] == names[3]


def test_a_limit_of_memory_holds() -> None:
    made = session(sardonyx__memory_limit=str(1 << 20))
    check(made, feed())
    with pytest.raises(errors.Fail, match="Available memory of"):
        list(made.run_streamed(None, feed(100_000)))
    check(made, feed())


def test_a_model_without_names_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that contradict the model's names take a second plan, which is made before the run begins."""
    content = model("""
        agraph (float[n, 4] x, float[n, 4] y) => (float[n, 4] a, float[n, 4] b) {
          a = Neg(x)
          b = Neg(y)
        }""")
    made = session(content)
    builds: list[Any] = []
    build = session_opening.build
    monkeypatch.setattr(session_opening, "build", lambda request: builds.append(request) or build(request))
    check(made, {"x": np.ones((2, 4), np.float32), "y": np.ones((3, 4), np.float32)})
    assert len(builds) == 1
