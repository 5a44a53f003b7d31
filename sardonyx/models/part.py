"""One ONNX file of a model: a session, and what its inputs and outputs are called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.api.values import element_types
from sardonyx.models.arrays import Array, as_numpy, as_tensor, is_tensor

if TYPE_CHECKING:
    from sardonyx.api.building.node_arg import NodeArg
    from sardonyx.api.session import InferenceSession


class Part:
    """A session of a model: an encoder, a decoder, or the whole model.

    `inputs` and `outputs` give the NumPy types by name, in the model's order; `input_shapes` and `output_shapes` the
    shapes as sessions show them; `given` and `made` all that sessions say of inputs and outputs.
    """

    def __init__(self, session: InferenceSession, use_io_binding: bool = False) -> None:
        self._opened: InferenceSession | None = session
        self.use_io_binding = use_io_binding
        self._tell(session.get_inputs(), session.get_outputs())

    def _tell(self, given: Sequence[NodeArg], made: Sequence[NodeArg]) -> None:
        self.given, self.made = given, made
        self.inputs = {argument.name: _dtype(argument.type) for argument in given}
        self.outputs = {argument.name: _dtype(argument.type) for argument in made}
        self.input_shapes = {argument.name: argument.shape for argument in given}
        self.output_shapes = {argument.name: argument.shape for argument in made}

    @property
    def session(self) -> InferenceSession:
        """The session."""
        assert self._opened is not None
        return self._opened

    @property
    def path(self) -> Path:
        """The model's file."""
        path = self.session._model_path
        if path is None:
            raise errors.InvalidArgument("The session was made from bytes: there is no file of the model")
        return Path(path)

    @property
    def fewest_positions(self) -> Mapping[str, int]:
        """How many positions there must be in caches that keep no more than a window, by the names of the inputs."""
        return self.session._session().fewest_positions

    @property
    def dtype(self) -> np.dtype[Any]:
        """The first floating-point type among inputs and outputs; float32 where there is none."""
        kinds = [*self.inputs.values(), *self.outputs.values()]
        return next((kind for kind in kinds if kind.kind == "f" or kind.name == "bfloat16"), np.dtype(np.float32))

    def run(self, values: Mapping[str, Array], wanted: Sequence[str] | None = None) -> dict[str, Array]:
        """The outputs by name for inputs by name; None stands for an input that is not given, others are left out.

        Tensors come out if one of the values is a tensor, else arrays; both are the memory that the run filled.
        Values of another type are cast to the input's. `errors.InvalidArgument` for inputs that are missing.
        """
        missing = [name for name in self.inputs if values.get(name) is None]
        if missing:
            given = ", ".join(name for name, value in values.items() if value is not None)
            raise errors.InvalidArgument(
                f"The model needs the inputs {', '.join(missing)}, which were not given; given were: {given or 'none'}"
            )
        as_tensors = any(is_tensor(value) for value in values.values())
        session = self.session
        feeds = {name: self._fed(name, values[name]) for name in self.inputs}
        names = list(self.outputs if wanted is None else wanted)
        found = self._bound_run(feeds, names) if self.use_io_binding else session.run(names, feeds)
        results = dict(zip(names, found, strict=True))
        return {name: as_tensor(value) for name, value in results.items()} if as_tensors else results

    def _fed(self, name: str, value: Array) -> np.ndarray[Any, Any]:
        array = as_numpy(value, name)
        return array if array.dtype == self.inputs[name] else array.astype(self.inputs[name])

    def _bound_run(self, feeds: Mapping[str, np.ndarray[Any, Any]], names: Sequence[str]) -> list[Any]:
        binding = self.session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]


class LaterPart(Part):
    """A part whose session is opened when it is asked for: never, where another one does the work.

    Until then its inputs and outputs are those that the file declares.
    """

    def __init__(
        self,
        path: Path,
        arguments: tuple[Sequence[NodeArg], Sequence[NodeArg]],
        open_session: Callable[[], InferenceSession],
        use_io_binding: bool = False,
    ) -> None:
        self._path, self._open = path, open_session
        self._opened, self._lock = None, threading.Lock()
        self.use_io_binding = use_io_binding
        self._tell(*arguments)

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._opened is not None

    @property
    def session(self) -> InferenceSession:
        """The session; the errors of `InferenceSession` where this is the first time."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
                self._tell(self._opened.get_inputs(), self._opened.get_outputs())
            return self._opened

    @property
    def path(self) -> Path:
        """The model's file."""
        return self._path


def _dtype(kind: str) -> np.dtype[Any]:
    """The NumPy type of ``tensor(float)``; objects for what is no tensor."""
    if not kind.startswith("tensor("):
        return np.dtype(object)
    return element_types.by_name(kind.removeprefix("tensor(").removesuffix(")")).dtype
