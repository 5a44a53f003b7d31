"""The short way of a run: it gives what the long way gives, and declines whatever it was not prepared for."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.runtime.native.fast_call import is_usable

pytestmark = pytest.mark.skipif(
    not is_usable(), reason="the interpreter's objects are not laid out as native code reads"
)

Array = np.ndarray[Any, Any]

TEXT = """(float[n, 4] x, float[n, 4] y) => (float[n, 4] sum, float[n, 4] product) {
    sum = Add(x, y)
    product = Mul(x, y)
}"""


def session(text: str = TEXT, threads: int = 1) -> ort.InferenceSession:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\nagraph {text}')
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model.SerializeToString(), options)


def feeds(rows: int = 3, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((rows, 4)).astype(np.float32) for name in ("x", "y")}


def fast(made: ort.InferenceSession, given: Any) -> list[Array] | None:
    assert made._fast is not None
    return made._fast(None, given)


def check(results: list[Array] | None, given: dict[str, Array]) -> None:
    assert results is not None
    np.testing.assert_array_equal(results[0], given["x"] + given["y"])
    np.testing.assert_array_equal(results[1], given["x"] * given["y"])


def test_it_takes_the_second_run_of_a_kind() -> None:
    made = session()
    assert fast(made, feeds()) is None
    check(made.run(None, feeds()), feeds())
    check(fast(made, feeds(seed=1)), feeds(seed=1))
    check(made.run(["sum", "product"], feeds(seed=2)), feeds(seed=2))
    assert len(made.run(["product"], feeds())) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float[n, 4] x) => (int64[2] y) { y = Shape(x) }", lambda x: np.array(x.shape)),
        ("(float[n, 4] x) => (int64 y) { y = Size(x) }", lambda x: np.array(x.size)),
        ("(float[n, 4] x) => (float[n, 4] y) { y = Identity(x) }", lambda x: x),
        ("(float[n, 4] x) => (float[m] y) { to = Constant<value_ints = [-1]>() y = Reshape(x, to) }", np.ravel),
        ("(float[3, 4] x) => (float[3, 4] y) { y = EyeLike(x) }", lambda x: np.eye(*x.shape, dtype=np.float32)),
    ],
)
def test_it_takes_what_computes_nothing(text: str, expected: Any) -> None:
    made, given = session(text), {"x": feeds()["x"]}
    (first,) = made.run(None, given)
    results = fast(made, given)
    assert results is not None
    for found in (first, *results):
        np.testing.assert_array_equal(found, expected(given["x"]))
        assert not np.shares_memory(found, given["x"])
    results[0][...] = 7  # the caller's own, whatever the session keeps
    np.testing.assert_array_equal(made.run(None, given)[0], expected(given["x"]))


STEERED = "(float[a, b] x, int64[2] to) => (float[c, d] y) { t = Reshape(x, to) y = Neg(t) }"


def test_contents_that_decide_are_compared() -> None:
    """The same again takes the short way, whether it is the same array or not; anything else does not."""
    made, x = session(STEERED), feeds(6)["x"]
    shapes = [np.array(shape) for shape in ((8, 3), (3, 8), (24, 1))]
    for to in shapes:
        given = {"x": x, "to": to}
        for _ in range(3):
            np.testing.assert_array_equal(made.run(None, given)[0], -x.reshape(to))
        results = fast(made, {"x": x + 1, "to": to.copy()})
        assert results is not None
        np.testing.assert_array_equal(results[0], -(x + 1).reshape(to))
        for other in shapes:
            assert (fast(made, {"x": x, "to": other}) is None) == (other is not to)
    for _ in range(3):
        for to in shapes:
            np.testing.assert_array_equal(made.run(None, {"x": x, "to": to})[0], -x.reshape(to))


def test_views_by_contents_that_decide() -> None:
    made, x = session("(float[a, b] x, int64[2] to) => (float[c, d] y) { y = Reshape(x, to) }"), feeds(6)["x"]
    for to in (np.array([8, 3]), np.array([3, 8])):
        for _ in range(3):
            (y,) = made.run(None, {"x": x, "to": to})
            np.testing.assert_array_equal(y, x.reshape(to))
            assert not np.shares_memory(x, y)
        assert fast(made, {"x": x, "to": to}) is not None


def test_contents_that_change_in_place_are_seen() -> None:
    made, x, to = session(STEERED), feeds(6)["x"], np.array([8, 3])
    for shape in ((8, 3), (8, 3), (8, 3), (4, 6), (4, 6), (2, 12), (8, 3)):
        to[:] = shape
        assert made.run(None, {"x": x, "to": to})[0].shape == shape
    to[:] = 5, 5
    with pytest.raises(errors.OnnxRuntimeError):
        made.run(None, {"x": x, "to": to})


def test_bound_memory_whose_contents_decide_is_read_in_every_run() -> None:
    made, x, to = session(STEERED), feeds(6)["x"], np.array([8, 3])
    binding = made.io_binding()
    shape = ort.OrtValue.ortvalue_from_numpy(to)
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_input("to", shape)
    binding.bind_output("y")
    for wanted in ((8, 3), (8, 3), (8, 3), (6, 4), (6, 4), (3, 8)):
        shape.numpy()[:] = wanted
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0].ravel(), -x.ravel())


def test_large_results_that_are_known_are_not_kept() -> None:
    """They are made in every run."""
    made = session("(float[700, 400] x) => (float[700, 400] y) { y = EyeLike(x) }")
    given = {"x": np.zeros((700, 400), np.float32)}
    for _ in range(2):
        np.testing.assert_array_equal(made.run(None, given)[0], np.eye(700, 400, dtype=np.float32))
    assert made._fast is None or fast(made, given) is None


def test_results_are_new_arrays() -> None:
    made = session()
    made.run(None, feeds())
    first, second = made.run(None, feeds()), made.run(None, feeds())
    assert not np.shares_memory(first[0], second[0])
    first[0][:] = 7
    check(second, feeds())
    assert first[0].flags.owndata
    assert first[0].flags.writeable


@pytest.mark.parametrize(
    "changed",
    [
        {"x": np.zeros((2, 4), np.float32)},
        {"x": np.zeros((3, 4), np.float64)},
        {"x": np.zeros((3, 4), ">f4")},
        {"x": np.zeros((4, 3), np.float32).T},
        {"x": np.zeros((3, 8), np.float32)[:, ::2]},
        {"x": [[0.0] * 4] * 3},
        {"x": None},
        {"z": np.zeros((3, 4), np.float32)},
    ],
    ids=["shape", "type", "byte order", "transposed", "strided", "list", "None", "unknown name"],
)
def test_it_declines_what_differs(changed: dict[str, Any]) -> None:
    made = session()
    made.run(None, feeds())
    assert fast(made, {**feeds(), **changed}) is None
    check(fast(made, feeds()), feeds())


@pytest.mark.parametrize("given", [None, 5, [], {}, {"x": feeds()["x"]}], ids=repr)
def test_it_declines_what_is_no_feed(given: Any) -> None:
    made = session()
    made.run(None, feeds())
    assert fast(made, given) is None


def test_a_strided_input_gives_the_right_result_after_all() -> None:
    made = session()
    made.run(None, feeds())
    given = {"x": np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2], "y": feeds()["y"]}
    check(made.run(None, given), given)


def test_a_wrong_input_raises_as_ever() -> None:
    made = session()
    made.run(None, feeds())
    with pytest.raises(errors.InvalidArgument, match="Unexpected input data type"):
        made.run(None, {**feeds(), "x": np.zeros((3, 4), np.int64)})
    with pytest.raises(ValueError, match="missing"):
        made.run(None, {"x": feeds()["x"]})


def test_shapes_that_come_and_go() -> None:
    made = session()
    for rows in (3, 5, 3, 3, 5, 5, 1, 3, 0, 0, 0):
        check(made.run(None, feeds(rows, seed=rows)), feeds(rows, seed=rows))


def test_no_reference_is_lost_or_kept() -> None:
    made = session()
    given = feeds()
    made.run(None, given)
    made.run(None, given)
    counts = [sys.getrefcount(given["x"]), sys.getrefcount(None), sys.getrefcount(np.dtype(np.float32))]
    for _ in range(1000):
        made.run(None, given)
    after = [sys.getrefcount(given["x"]), sys.getrefcount(None), sys.getrefcount(np.dtype(np.float32))]
    assert after[0] == counts[0]
    assert abs(after[1] - counts[1]) < 100
    assert abs(after[2] - counts[2]) < 100


def test_an_error_of_a_kernel_is_raised_by_the_long_way() -> None:
    text = """(float[5, 2] table, int64[n] index) => (float[n, 2] rows) {
        rows = Gather(table, index)
    }"""
    made = session(text)
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    good = {"table": table, "index": np.array([4, -5])}
    for _ in range(3):
        np.testing.assert_array_equal(made.run(None, good)[0], table[[4, 0]])
    with pytest.raises(errors.OnnxRuntimeError, match="5"):
        made.run(None, {"table": table, "index": np.array([1, 5])})
    np.testing.assert_array_equal(made.run(None, good)[0], table[[4, 0]])


def test_threads_that_run_at_once_get_their_own_results() -> None:
    made = session(threads=2)
    given = [feeds(200, seed) for seed in range(8)]
    for one in given:
        made.run(None, one)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            results = made.run(None, given[number])
            if not np.array_equal(results[0], given[number]["x"] + given[number]["y"]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_way_that_is_closed_or_prepared_while_it_is_prepared_stays_closed() -> None:
    """As threads do that take the long way at once: here the second one comes in the middle of the first."""
    made = session()
    core: Any = made._sess
    own = core._own_fast
    call = own[1]
    execution_contexts = call._execution_contexts
    taken: list[Any] = []

    class Interrupted:
        def lend(self, borrower: Any) -> Any:
            core._prepare_fast(own, feeds(5))  # has no effect
            call.close()
            taken.append(execution_contexts.take())
            return taken[-1]

        def give(self, execution_context: Any) -> None:
            taken.remove(execution_context)
            execution_contexts.give(execution_context)

    core._prepare_fast(own, feeds())
    check(fast(made, feeds()), feeds())
    call.close()
    call._execution_contexts = Interrupted()
    core._prepare_fast(own, feeds())
    core._prepare_fast(own, feeds())
    assert fast(made, feeds()) is None
    assert not taken
    call._execution_contexts = execution_contexts
    for _ in range(3):
        check(made.run(None, feeds()), feeds())
    check(fast(made, feeds()), feeds())


def test_the_way_outlives_its_session() -> None:
    made = session()
    made.run(None, feeds())
    way = made._fast
    assert way is not None
    del made
    gc.collect()
    results = way(None, feeds())
    if results is not None:
        check(results, feeds())


def test_bound_memory_is_written_directly() -> None:
    made = session()
    binding = made.io_binding()
    given = feeds()
    sums, products = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    binding.bind_cpu_input("x", given["x"])
    binding.bind_cpu_input("y", given["y"])
    for name, array in (("sum", sums), ("product", products)):
        binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    for number in range(4):
        given["x"][:] = number
        sums[:] = products[:] = np.nan
        made.run_with_iobinding(binding)
        check([sums, products], given)
    other = np.zeros((3, 4), np.float32)
    binding.bind_output("sum", "cpu", 0, np.float32, other.shape, other.ctypes.data)
    sums[:] = -1
    made.run_with_iobinding(binding)
    check([other, products], given)
    assert (sums == -1).all()


def test_an_output_bound_to_an_input_gets_the_result() -> None:
    made = session()
    binding = made.io_binding()
    given = feeds()
    x = given["x"].copy()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("y", given["y"])
    binding.bind_output("sum", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("product")
    expected = given["x"]
    for _ in range(3):
        product = expected * given["y"]
        expected = expected + given["y"]
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(x, expected)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], product)
