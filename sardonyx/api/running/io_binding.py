"""Inputs and outputs bound to memory, so that runs copy nothing and write where the caller wants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.api.running.fast_run import is_same_memory
from sardonyx.api.values import element_types
from sardonyx.api.values.core_value import CoreValue, pointer_array, tensor_array
from sardonyx.api.values.device import CoreDevice, OrtDevice, require_cpu
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.api.values.ort_value_vector import OrtValueVector
from sardonyx.runtime.memory.memory import MemoryLimitError
from sardonyx.runtime.native.native_segment import BindingError

if TYPE_CHECKING:
    from sardonyx.api.core_session import CoreSession
    from sardonyx.api.session import InferenceSession

Array = np.ndarray[Any, Any]


class SessionIOBinding:
    """The binding at the C level: values by input name, targets by output name."""

    def __init__(self, session: CoreSession) -> None:
        self._session = session
        self._output_kinds = {argument.name: argument.type for argument in session.outputs_meta}
        arguments = [*session.inputs_meta, *session.overridable_initializers]
        self._input_kinds = {argument.name: argument.type for argument in arguments}
        self._inputs: dict[str, CoreValue] = {}
        self._outputs: dict[str, CoreValue] = {}
        self._bound: set[str] = set()  # outputs whose memory the caller gave: their shape is the caller's word
        self._results = OrtValueVector()
        self._spare: list[Array] = []  # memory of outputs that are not bound, as native code makes them all
        self._fast = None if session.short_way is None else session.short_way.fast_call()

    @property
    def again(self) -> Callable[[], bool | None]:
        """What `execute` does where nothing has changed since its last run, but for a look at files, in native code.

        It gives True, or None where it did nothing, and `execute` is to do it.
        """
        return _nothing if self._fast is None else self._fast.bound

    @property
    def session(self) -> CoreSession:
        """The session that the binding belongs to."""
        return self._session

    def bind_input(self, name: str, *value: Any) -> None:
        """Bind an array; or device, element type, shape and address of memory that the caller keeps alive."""
        self._changed()
        if name not in self._input_kinds:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        if len(value) == 1:
            self._inputs[name] = _input(value[0], self._input_kinds[name])
            return
        device, kind, shape, address = value
        self._inputs[name] = CoreValue(_foreign(device, kind, shape, address))

    def bind_ortvalue_input(self, name: str, value: CoreValue) -> None:
        """Bind a value, whose memory the runs read; RuntimeError for an unknown name."""
        self._changed()
        if name not in self._input_kinds:
            raise RuntimeError(f"Error when binding input: Failed to find input name in the mapping: {name}")
        self._inputs[name] = value

    def bind_output(self, name: str, device: CoreDevice, *memory: Any) -> None:
        """Ask for an output, in new memory or (element type, shape, address) in the caller's."""
        if not memory:
            require_cpu(device)
            self._bind_output(name, CoreValue(None), bound=False)
            return
        kind, shape, address = memory
        self._bind_output(name, CoreValue(_foreign(device, kind, shape, address)), bound=True)

    def bind_ortvalue_output(self, name: str, value: CoreValue) -> None:
        """Write an output into the memory of a tensor; a value that holds nothing yet receives the result.

        RuntimeError for memory that is read-only.
        """
        if isinstance(value.raw, np.ndarray) and not value.raw.flags.writeable:
            raise RuntimeError(f"Error when binding output: the memory of the OrtValue for '{name}' is read-only")
        self._bind_output(name, value, bound=value.has_value())

    def synchronize_inputs(self) -> None:
        """Wait until inputs have arrived; on the host they always have."""

    def synchronize_outputs(self) -> None:
        """Wait until outputs have arrived; on the host they always have."""

    def clear_binding_inputs(self) -> None:
        """Forget all bound inputs."""
        self._changed()
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget all bound outputs and their results."""
        self._changed()
        self._outputs.clear()
        self._bound.clear()
        self._results = OrtValueVector()

    def get_outputs(self) -> OrtValueVector:
        """The bound values in the order of binding; those not yet run hold nothing."""
        return self._results

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of the results; None for an output that has not been run or is absent."""
        return [value.numpy().copy() if value.is_tensor() else _copied(value.raw) for value in self._results]

    def execute(self, run_options: Any = None) -> None:
        """Run the session on what is bound; RuntimeError ``Error in execution: …`` for whatever fails."""
        if self._fast is not None and run_options is None and self._session.files_are_whole() and self._fast.bound():
            return
        if run_options is not None:
            self._changed()  # such a run may give memory back
        if not self._outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        feeds = {name: value.raw for name, value in self._inputs.items()}
        if run_options is None and self._ran_in_place(feeds):
            return
        try:
            results = self._session.execute(list(self._outputs), feeds, run_options)
        except errors.OnnxRuntimeError as error:
            raise RuntimeError(f"Error in execution: {error.message}") from error
        for name, raw in zip(self._outputs, results, strict=True):
            self._store(name, raw)
        if self._fast is not None and run_options is None:
            self._prepare_fast(feeds)

    def _ran_in_place(self, feeds: Mapping[str, Any]) -> bool:
        """Whether a run was done in caches that are bound as inputs and as outputs, which the long way copies twice.

        That also says what is wrong with inputs.
        """
        one = self._session.short_way
        if one is None or self._fast is None or not self._session.files_are_whole():
            return False
        pairs = [(feeds.get(given), self._outputs.get(made)) for given, made in self._session.in_place]
        if not any(_is_bound_to(made, given) for given, made in pairs):
            return False
        try:
            inputs = self._session.checked(feeds)
            self._prepare_fast(feeds, once=True)
        except (errors.OnnxRuntimeError, RuntimeError, BindingError):
            return False
        is_done = bool(self._fast.bound())
        if one.is_steered:
            self._fast.close()
        if is_done:
            self._session.note_bound_run(inputs)
        return is_done

    def _prepare_fast(self, feeds: Mapping[str, Any], *, once: bool = False) -> None:
        """Let the next run write straight into the bound memory, where what is bound allows that; with `once`, also
        where contents decide, for the next run alone, and where outputs are not bound, which are then made for nobody.
        """
        one = self._session.short_way
        assert one is not None
        assert self._fast is not None
        names = self._session.output_names
        arrays = {name: self._outputs[name].raw if name in self._outputs else None for name in names}
        whole = set(feeds) == set(one.inputs) and all(value.raw is not None for value in self._outputs.values())
        whole = whole and (once or len(self._outputs) == len(names))
        if whole and not self._session.contradicts(feeds):
            with contextlib.suppress(MemoryLimitError), self._session.within_limit():  # the long way needs less
                self._spare = one.prepare_bound(self._fast, feeds, arrays, self._session.in_place, once=once)

    def _changed(self) -> None:
        """What is bound is not what the last run was on."""
        if self._fast is not None:
            self._fast.close()
        self._spare = []

    def _bind_output(self, name: str, value: CoreValue, *, bound: bool) -> None:
        self._changed()
        self._outputs[name] = value
        (self._bound.add if bound else self._bound.discard)(name)
        self._results.replace(list(self._outputs.values()))

    def _store(self, name: str, raw: Any) -> None:
        """Put a result into its bound memory; where only a device was bound, into that of the last run if it fits."""
        target = self._outputs[name]
        held = target.raw
        fits = (
            isinstance(held, np.ndarray)
            and isinstance(raw, np.ndarray)
            and held.shape == raw.shape
            and held.dtype == raw.dtype
        )
        if fits:
            held[...] = raw
        elif name in self._bound:
            raise RuntimeError(f"Error in execution: {self._mismatch(name, target, raw)}")
        else:
            self._outputs[name] = CoreValue(raw, self._output_kinds[name])
            self._results.replace(list(self._outputs.values()))

    def _mismatch(self, name: str, target: CoreValue, raw: Any) -> str:
        if isinstance(raw, np.ndarray) and target.is_tensor() and target.array().dtype == raw.dtype:
            given, computed = ("{" + ",".join(map(str, shape)) + "}" for shape in (target.array().shape, raw.shape))
            return (
                f"The output OrtValue provided for output '{name}' has shape {given} but the computed output shape "
                f"for this run is {computed}. When calling Run() with pre-allocated output OrtValues on a model with "
                "dynamic output shapes, either supply unallocated output OrtValues or ensure the pre-allocated "
                "shapes match the expected output shapes for each run."
            )
        return (
            f"Unexpected output data type for output '{name}'. Actual: ({target.data_type()}) , "
            f"expected: ({self._output_kinds[name]})"
        )


def _nothing() -> None:
    """A run again where there is no native one."""


def _is_bound_to(value: CoreValue | None, memory: Any) -> bool:
    """Whether a value is an array in this memory."""
    held = None if value is None else value.raw
    return isinstance(held, np.ndarray) and isinstance(memory, np.ndarray) and is_same_memory(held, memory)


class IOBinding:
    """Bind a session's inputs and outputs, then call `session.run_with_iobinding(binding)`."""

    def __init__(self, session: InferenceSession) -> None:
        self._iobinding = SessionIOBinding(session._session())

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array, whose memory the runs read if it is contiguous; RuntimeError for an unknown name."""
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory at an address, which the caller keeps alive; `element_type` as NumPy type or ONNX number."""
        device = OrtDevice.make(device_type, device_id)._get_c_device()
        self._iobinding.bind_input(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value, whose memory the runs read; RuntimeError for an unknown name."""
        self._iobinding.bind_ortvalue_input(name, ortvalue._ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in new memory or at an address (then with element type and shape, else ValueError)."""
        device = OrtDevice.make(device_type, device_id)._get_c_device()
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
        elif element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        else:
            self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output into the memory of a tensor of its type and shape; an empty value gets the result.

        RuntimeError for memory that is read-only, and in the run for another type or shape.
        """
        self._iobinding.bind_ortvalue_output(name, ortvalue._ortvalue)

    def synchronize_inputs(self) -> None:
        """Wait until inputs have arrived; on the host they always have."""
        self._iobinding.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Wait until outputs have arrived; on the host they always have."""
        self._iobinding.synchronize_outputs()

    def get_outputs(self) -> list[OrtValue]:
        """The bound outputs in the order of binding; those not yet run hold nothing."""
        return [OrtValue(value) for value in self._iobinding.get_outputs()]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """`get_outputs` as the vector that `InferenceSession.run_with_ortvaluevector` takes."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of the results as arrays, lists and dicts."""
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Forget all bound inputs."""
        self._iobinding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Forget all bound outputs and their results."""
        self._iobinding.clear_binding_outputs()


def _input(value: Any, kind: str) -> CoreValue:
    """A value for an input of type `kind`; a list becomes an array of its element type, or stays a sequence."""
    if isinstance(value, CoreValue):
        return value
    if isinstance(value, (list, dict)) and not kind.startswith("tensor("):
        return CoreValue(value, kind)
    if isinstance(value, (list, np.generic)):
        value = np.asarray(value, element_types.by_name(kind[len("tensor(") : -1]).dtype)
    if not isinstance(value, np.ndarray):
        raise RuntimeError(f"Unable to create OrtValue from the given python object of {type(value)}")
    return CoreValue(tensor_array(value))


def _copied(raw: Any) -> Any:
    """A sequence or map whose arrays are copies."""
    if isinstance(raw, list):
        return [_copied(item) for item in raw]
    if isinstance(raw, dict):
        return {key: _copied(item) for key, item in raw.items()}
    return raw.copy() if isinstance(raw, np.ndarray) else raw


def _foreign(device: CoreDevice, kind: Any, shape: Sequence[int], address: int) -> Array:
    require_cpu(device)
    return pointer_array(address, element_types.requested(kind), shape)
