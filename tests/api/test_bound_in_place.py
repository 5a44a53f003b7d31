"""Outputs bound to the memory of inputs: the same results in every run, in place where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort

START = np.arange(16, dtype=np.float32).reshape(4, 4)


def session(text: str, opset: int = 20) -> ort.InferenceSession:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> {text}')
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def runs(made: ort.InferenceSession, given: dict[str, Any], places: dict[str, str]) -> tuple[list[Any], bool]:
    """The outputs of five runs from the same inputs, with outputs at the `places` of inputs; and whether the last run
    was native."""
    binding, values, found = made.io_binding(), {}, []
    for name, array in given.items():
        values[name] = ort.OrtValue.ortvalue_from_numpy(array.copy())
        binding.bind_ortvalue_input(name, values[name])
    for item in made.get_outputs():
        if item.name in places:
            binding.bind_ortvalue_output(item.name, values[places[item.name]])
        else:
            binding.bind_output(item.name)
    for _ in range(5):
        for name, array in given.items():
            values[name].update_inplace(array)
        made.run_with_iobinding(binding)
        found.append(binding.copy_outputs_to_cpu())
    return found, bool(binding._iobinding._fast and binding._iobinding._fast.bound())


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("g (float[4,4] x) => (float[4,4] y, float[4,4] z) { y = Add(x, x) z = MatMul(x, x) }", {"y": "x"}),
        ("g (float[4,4] x) => (float[4,4] y) { y = Transpose(x) }", {"y": "x"}),
        ("g (float[4,4] x) => (float[4,4] y) { y = MatMul(x, x) }", {"y": "x"}),
        (
            "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z) { y = Relu(x) z = Neg(w) }",
            {"y": "w", "z": "x"},
        ),
    ],
)
def test_no_step_reads_what_another_has_written_over(text: str, places: dict[str, str]) -> None:
    made = session(text)
    given = {item.name: START + number for number, item in enumerate(made.get_inputs())}
    wanted = made.run(None, given)
    for found in runs(made, given, places)[0]:
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("place", ["past", "other"])
def test_caches_are_written_in_place(place: str) -> None:
    made = session(
        "g (float[1,4,4] past, float[1,1,4] update, int64[1] at, float[1,4,4] other)"
        " => (float[1,4,4] now, float[1,4,4] o) { now = TensorScatter<axis: int = 1>(past, update, at)"
        " o = Neg(other) }",
        24,
    )
    given = {"past": START[None], "update": START[None, :1] + 50, "at": np.array([2]), "other": START[None]}
    wanted = START.copy()
    wanted[2] = START[0] + 50
    found, is_native = runs(made, given, {"now": place})
    for now, other in found:
        np.testing.assert_array_equal(now[0], wanted)
        np.testing.assert_array_equal(other[0], -START)
    assert is_native == (place == "past")


def test_caches_are_written_in_place_beside_outputs_that_nobody_wants() -> None:
    made = session(
        "g (float[1,n,4] past, float[1,1,4] update, int64[1] at) => (float[1,n,4] now, float[1,1,4] o, float[0,4] e)"
        " { now = TensorScatter<axis: int = 1>(past, update, at) o = Neg(update)"
        " e = Constant<value: tensor = float[0,4] {}>() }",
        24,
    )
    past = ort.OrtValue.ortvalue_from_numpy(START[None].copy())
    binding = made.io_binding()
    binding.bind_ortvalue_input("past", past)
    binding.bind_cpu_input("update", START[None, :1] + 50)
    binding.bind_cpu_input("at", np.array([2]))
    binding.bind_ortvalue_output("now", past)
    made.run_with_iobinding(binding)
    assert binding._iobinding._fast.bound()  # without the others, or else memory for the caches would be made
    wanted = START.copy()
    wanted[2] = START[0] + 50
    np.testing.assert_array_equal(past.numpy()[0], wanted)
    o = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, 4), np.float32))
    binding.bind_ortvalue_output("o", o)  # now somebody does
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(o.numpy(), -(START[None, :1] + 50))
    np.testing.assert_array_equal(past.numpy()[0], wanted)
    assert [value.shape() for value in binding.get_outputs()] == [[1, 4, 4], [1, 1, 4]]


def test_memory_that_is_read_only_receives_nothing() -> None:
    array = START.copy()
    array.flags.writeable = False
    binding = session("g (float[4,4] x) => (float[4,4] y) { y = Neg(x) }").io_binding()
    with pytest.raises(RuntimeError, match="'y' is read-only"):
        binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(array))


SIZES = """ones = Constant<value_ints: ints = [1]>() one = Constant<value_int: int = 1>()
    sum = ReduceSum<keepdims: int = 0>(mask, ones) last = Sub(sum, one) seq = Cast<to: int = 6>(last)
    dims = Shape(mask) length = Gather<axis: int = 0>(dims, one) total = Cast<to: int = 6>(length)"""


@pytest.mark.parametrize("told", ["by a mask", "by contents"])
def test_caches_grow_in_place(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token has other sizes, or other contents that decide; none goes the way that copies the caches."""
    sizes = "int64[1,t] mask" if told == "by a mask" else "int32[1] seq, int32[1] total"
    made = session(
        f"g (float[1,s,16] q, float[1,s,8] k, float[1,s,8] v, float[1,2,9,4] pk, float[1,2,9,4] pv, {sizes})"
        f" => (float[1,s,16] y, float[1,2,9,4] nk, float[1,2,9,4] nv) {{ {SIZES if told == 'by a mask' else ''}"
        " y, nk, nv = com.microsoft.GroupQueryAttention<num_heads: int = 4, kv_num_heads: int = 2>"
        "(q, k, v, pk, pv, seq, total) }"
    )
    rng = np.random.default_rng(0)
    binding, executed, core = made.io_binding(), [], made._session()
    execute = core.execute

    def noting(*others: Any) -> Any:
        executed.append(others)
        return execute(*others)

    monkeypatch.setattr(core, "execute", noting)
    caches = {name: np.zeros((1, 2, 9, 4), np.float32) for name in ("pk", "pv")}
    bound = {name: ort.OrtValue.ortvalue_from_numpy(cache.copy()) for name, cache in caches.items()}
    for name, value in bound.items():
        binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(name.replace("p", "n"), value)
    for length in range(1, 9):
        widths = {"q": 16, "k": 8, "v": 8}
        given = {name: rng.standard_normal((1, 1, width)).astype(np.float32) for name, width in widths.items()}
        if told == "by a mask":
            given["mask"] = np.ones((1, length), np.int64)
        else:
            given |= {"seq": np.array([length - 1], np.int32), "total": np.array([length], np.int32)}
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        y = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, 16), np.float32))
        binding.bind_ortvalue_output("y", y)
        made.run_with_iobinding(binding)
        wanted = execute(("y", "nk", "nv"), {**given, **caches})
        caches = {"pk": wanted[1], "pv": wanted[2]}
        for found, other in zip((y, bound["pk"], bound["pv"]), wanted, strict=True):
            np.testing.assert_array_equal(found.numpy(), other)
    assert not executed
    wrong = {"mask": np.ones((2, 9), np.int64)} if told == "by a mask" else {"total": np.array([9], np.int64)}
    for name, array in wrong.items():
        binding.bind_cpu_input(name, array)
    with pytest.raises(RuntimeError, match="Error in execution"):
        made.run_with_iobinding(binding)
