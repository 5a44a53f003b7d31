"""Sessions where no more threads can be had: at the end of the interpreter, and below a limit of the system."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAD = """
    import atexit, sys, threading, time
    import numpy as np
    from onnx import helper, numpy_helper
    import sardonyx as ort

    def model():
        # Weights that are packed by several threads.
        random = np.random.default_rng(0)
        weights = [random.standard_normal(size, dtype=np.float32) for size in ((256, 1024), (1024, 256))]
        nodes = [("MatMul", "x first a"), ("Relu", "a b"), ("MatMul", "b second y")]
        graph = helper.make_graph(
            [helper.make_node(kind, names.split()[:-1], names.split()[-1:]) for kind, names in nodes],
            "two",
            [helper.make_tensor_value_info("x", 1, ["n", 256])],
            [helper.make_tensor_value_info("y", 1, ["n", 256])],
            [numpy_helper.from_array(*pair) for pair in zip(weights, ("first", "second"))],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()

    MODEL = model()
    ort.set_default_logger_severity(3)

    def session():
        options = ort.SessionOptions()
        options.intra_op_num_threads = 3
        return ort.InferenceSession(MODEL, options)

    def check(made, *sizes):
        for size in sizes:
            (result,) = made.run(None, {"x": np.zeros((size, 256), np.float32)})
            assert result.shape == (size, 256) and not result.any()

    def main_has_ended():
        while threading.main_thread().is_alive():
            time.sleep(0.01)
        time.sleep(0.1)
"""

PROGRAMS = {
    "made when the main thread has ended": """
        def work():
            main_has_ended()
            made = session()
            check(made, 3, 7, 400, 400)
            print("ran")
        threading.Thread(target=work).start()
    """,
    "made at the end": """
        def work():
            made = session()
            check(made, 3, 7, 400, 400)
            print("ran")
        atexit.register(work)
    """,
    "new sizes at the end": """
        made = session()
        check(made, 2)
        atexit.register(lambda: (check(made, 3, 7, 400, 400), print("ran")))
    """,
    "called back at the end": """
        made = session()
        check(made, 2)
        called = []
        def again(results, left, problem):
            assert not problem, problem
            called.append(results[0].shape)
            if left:
                made.run_async(None, {"x": np.zeros((left, 256), np.float32)}, again, left - 1)
            else:
                print("ran" if called == [(5, 256), (4, 256), (3, 256), (2, 256), (1, 256)] else called)
        def work():
            main_has_ended()
            made.run_async(None, {"x": np.zeros((5, 256), np.float32)}, again, 4)
        threading.Thread(target=work).start()
    """,
    "no thread can start": """
        def refuse(*arguments, **named):
            raise RuntimeError("can't start new thread")
        threading._start_new_thread = threading._start_joinable_thread = refuse
        path = sys.argv[1]
        with open(path, "wb") as file:
            file.write(MODEL)
        MODEL = path
        called = []
        for _ in range(2):
            time.sleep(2.2)  # the file may have an engine now
            made = session()
            check(made, 3, 7, 400, 400)
            made.run_async(None, {"x": np.zeros((5, 256), np.float32)}, lambda *given: called.append(given[2]), None)
        print("ran" if called == ["", ""] else called)
    """,
    "no thread can start for an engine": """
        path = sys.argv[1]
        with open(path, "wb") as file:
            file.write(MODEL)
        MODEL = path
        time.sleep(2.2)
        made = session()
        check(made, 3)
        for writer in threading.enumerate():
            if writer.name == "sardonyx-engine":
                writer.join()
        del made
        def refuse(*arguments, **named):
            raise RuntimeError("can't start new thread")
        threading._start_new_thread = threading._start_joinable_thread = refuse
        made = session()
        check(made, 3, 7, 400, 400)
        print("ran")
    """,
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_sessions_do_without(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(PROGRAMS[name]), str(tmp_path / "model.onnx")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "ran", "")
