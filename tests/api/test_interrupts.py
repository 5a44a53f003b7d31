"""Runs that would last for ever, ended by Ctrl-C or by their options."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx import errors

pytestmark = [
    pytest.mark.machine_neutral,
    pytest.mark.skipif(
        not hasattr(time, "pthread_getcpuclockid"), reason="the system has no POSIX signals, or no clocks of threads"
    ),
]

# y = x + rounds: some, or more than anybody lives to see.
COUNTING = """<ir_version: 9, opset_import: ["" : 20]>
agraph (int64 rounds, bool[1] go, float[64] x) => (float[64] y) {
  y = Loop <body = round (int64 number, bool before, float[64] sum) => (bool again, float[64] more) {
    again = Identity(before)
    one = Constant <value_float = 1.0> ()
    more = Add(sum, one)
  }> (rounds, flag, x)
}"""
MODEL = onnx.parser.parse_model(COUNTING.replace("flag, x)", "go, x)")).SerializeToString()
X = np.arange(64, dtype=np.float32)
FOR_EVER = 1 << 60


def feeds(rounds: int) -> dict[str, np.ndarray]:
    return {"rounds": np.array(rounds, np.int64), "go": np.array([True]), "x": X}


def session(threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(MODEL, options)


def check(made: ort.InferenceSession) -> None:
    for rounds in (3, 5):
        np.testing.assert_array_equal(made.run(None, feeds(rounds))[0], X + rounds)


@pytest.mark.parametrize("threads", [1, 2])
def test_options_end_a_run(threads: int) -> None:
    made, options = session(threads), ort.RunOptions()
    check(made)
    timer = threading.Timer(0.1, setattr, (options, "terminate", True))
    timer.start()
    with pytest.raises(errors.Fail, match="Exiting due to terminate flag being set to true"):
        made.run(None, feeds(FOR_EVER), options)
    timer.join()
    check(made)
    options.terminate = False
    np.testing.assert_array_equal(made.run(None, feeds(4), options)[0], X + 4)


def test_a_run_ends_within_ten_milliseconds() -> None:
    """The quickest of a few: other programs may have the processor."""
    made, delays = session(), []
    check(made)
    for _ in range(8):
        options, told = ort.RunOptions(), [0.0]

        def terminate(options: ort.RunOptions = options, told: list[float] = told) -> None:
            told[0] = time.perf_counter()
            options.terminate = True

        timer = threading.Timer(0.05, terminate)
        timer.start()
        with pytest.raises(errors.Fail, match="terminate flag"):
            made.run(None, feeds(FOR_EVER), options)
        delays.append(time.perf_counter() - told[0])
        timer.join()
    assert min(delays) < 0.01


_PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import sardonyx as ort
from tests.api.test_interrupts import FOR_EVER, check, feeds, session

def interrupt_soon(times=1, clock=time.CLOCK_PROCESS_CPUTIME_ID):
    '''Send signals, each when the process has computed for so long that it can only be in the run that never ends.'''
    def send():
        for _ in range(times):
            end = time.clock_gettime(clock) + 0.1
            while time.clock_gettime(clock) < end:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
    sender = threading.Thread(target=send)
    sender.start()
    return sender

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever those who run the tests do with it
made = session({threads})
{body}
check(made)
print("end", flush=True)
"""


def _printed(body: str, threads: int = 1) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(body=body, threads=threads)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WAYS = {
    "the long way": "made.run(None, feeds(FOR_EVER), ort.RunOptions())",
    "the short way": "made.run(None, feeds(FOR_EVER))",
    "a streamed run": "list(made.run_streamed(None, feeds(FOR_EVER)))",
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("threads", [1, 2])
def test_control_c_ends_a_run(way: str, threads: int) -> None:
    body = f"""
for turn in range(3):
    check(made)
    interrupt_soon()
    try:
        {WAYS[way]}
    except KeyboardInterrupt:
        print("interrupted")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    assert _printed(body, threads) == "interrupted\n" * 3 + "end\n"


@pytest.mark.parametrize("way", list(WAYS))
def test_a_run_goes_on_after_a_handler_that_raises_nothing(way: str) -> None:
    body = f"""
class Stop(BaseException):
    pass
seen = []
def handle(number, frame):
    seen.append(number)
    check(other)  # a handler may run models, too
    if len(seen) == 3:
        raise Stop("three times")
other = session()
for one in (made, other):
    check(one)
signal.signal(signal.SIGINT, handle)
interrupt_soon(3)
try:
    {WAYS[way]}
except Stop as error:
    print(error, seen == [signal.SIGINT] * 3)
"""
    assert _printed(body) == "three times True\nend\n"


def test_a_handler_may_put_another_in_its_place() -> None:
    body = """
def first(number, frame):
    signal.signal(signal.SIGINT, second)
def second(number, frame):
    raise ValueError("second")
check(made)
signal.signal(signal.SIGINT, first)
interrupt_soon(2)
try:
    made.run(None, feeds(FOR_EVER))
except ValueError as error:
    print(error, signal.getsignal(signal.SIGINT) is second)
"""
    assert _printed(body) == "second True\nend\n"


def test_a_signal_that_is_ignored_ends_nothing() -> None:
    body = """
check(made)
signal.signal(signal.SIGINT, signal.SIG_IGN)
options = ort.RunOptions()
sender = interrupt_soon(2)
def end():
    sender.join()
    options.terminate = True
threading.Thread(target=end).start()
try:
    made.run(None, feeds(FOR_EVER), options)
except ort.capi.onnxruntime_pybind11_state.Fail:
    print("ended by its options", signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
"""
    assert _printed(body) == "ended by its options True\nend\n"


def test_runs_of_other_threads_go_on() -> None:
    body = """
check(made)
own, options, ended = session(), ort.RunOptions(), []
def work():
    try:
        made.run(None, feeds(FOR_EVER), options)
    except ort.capi.onnxruntime_pybind11_state.Fail:
        ended.append("by its options")
other = threading.Thread(target=work)
other.start()
interrupt_soon(clock=time.pthread_getcpuclockid(threading.get_ident()))  # the other thread computes, too
try:
    own.run(None, feeds(FOR_EVER))
except KeyboardInterrupt:
    time.sleep(0.2)
    print("interrupted", ended)
options.terminate = True
other.join()
print(ended)
"""
    assert _printed(body) == "interrupted []\n['by its options']\nend\n"


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 13), reason="3.13 tells of a signal the thread that was the main one before the fork"
)
def test_a_child_of_another_thread_is_interrupted_too() -> None:
    body = """
check(made)
interrupt_soon()
try:
    made.run(None, feeds(FOR_EVER))
except KeyboardInterrupt:
    pass
def fork():
    child = os.fork()
    if child == 0:
        interrupt_soon()
        try:
            made.run(None, feeds(FOR_EVER))
        except KeyboardInterrupt:
            os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""
    assert _printed(body) == "7\nend\n"


def test_nothing_is_left_of_the_handler_here() -> None:
    before = signal.getsignal(signal.SIGINT)
    made = session()
    check(made)
    made.run(None, feeds(2_000_000))
    assert signal.getsignal(signal.SIGINT) is before
