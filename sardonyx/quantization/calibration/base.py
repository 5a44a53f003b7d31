"""What all calibrators share: the model with more outputs, the session, and the walk over the samples."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from sardonyx import errors
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.graph.load import load_model
from sardonyx.quantization.calibration import augmented_model, infinities, tensors
from sardonyx.quantization.calibration.progress import Callback, Progress
from sardonyx.quantization.calibration.ranges import TensorsData
from sardonyx.quantization.calibration.readers import Feed, as_reader, length_of, samples_of
from sardonyx.quantization.calibration.state import StateFile, file_stamp, identity_of
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.files.opening import open_file

Array = np.ndarray[Any, Any]

_FOLDER = "session.model_external_initializers_file_folder_path"
_AXES_AS_INPUT = 18  # the opset from which on ReduceMin and ReduceMax take their axes as an input


class CalibraterBase:
    """Runs a model on samples and keeps statistics of its activations.

    The steps are those of onnxruntime's calibrators: `augment_graph` writes the model with more outputs,
    `create_inference_session` opens it, `collect_data` runs it on samples (as often as there are samples),
    `compute_data` gives the ranges. A subclass says which outputs are added (`augment_graph`), what becomes of those
    of a sample (`collect_sample`), and how ranges follow (`compute_data`).

    - `progress` is a function that is told after each sample how many are done and how many there are (None where
      that is not known); without it a terminal shows a bar.
    - `ort_compatible` asks for the numbers of onnxruntime 1.31 where they are not ours.
    """

    def __init__(
        self,
        model_path: str | Path,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        """`op_types_to_calibrate` are the operators whose float inputs and results are calibrated, all by default.

        `symmetric` ranges have zero in the middle, `per_channel` ones are of each channel (axis 1). Weights that lie in
        files of their own are read from there whatever `use_external_data_format` says. `errors.InvalidArgument`, also
        a ValueError, for a model that is not given as a path; the errors of loading a model.
        """
        if not isinstance(model_path, str | os.PathLike):
            raise InvalidQuantization(
                f"The model to calibrate must be the path of a file, not {type(model_path).__name__}: save it first"
            )
        self._model_path = Path(model_path)
        self.model = augmented_model.read_structure(self._model_path)
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.per_channel = per_channel

        self.augment_model: ModelProto | None = None
        self.infer_session: InferenceSession | None = None
        self.execution_providers: Sequence[Any] = ["CPUExecutionProvider"]
        self.model_original_outputs = {output.name for output in self.model.graph.output}
        self.num_model_outputs = len(self.model.graph.output)

        self.progress: Callback | None = None
        self.ort_compatible = False
        self._state: StateFile | None = None
        self._infinite: set[str] | None = None  # the tensors that infinite constants come to; found if one is infinite
        self._samples = 0  # whose statistics are held
        self._to_skip = 0  # samples of the reader whose statistics a file of state has given

    def set_execution_providers(self, execution_providers: Sequence[Any] = ("CPUExecutionProvider",)) -> None:
        """Choose the providers, and open the session with them."""
        self.execution_providers = list(execution_providers)
        self.create_inference_session()

    def create_inference_session(self) -> None:
        """Open the augmented model."""
        options = SessionOptions()
        path = self.augmented_model_path
        source: str | bytes = os.fspath(path)
        own_folder = augmented_model.folder_of(self._model_path)
        if self._weights_are_elsewhere() and own_folder != augmented_model.folder_of(Path(path)):
            options.add_session_config_entry(_FOLDER, own_folder)
            with open_file(path) as file:
                source = file.read()
        self.infer_session = InferenceSession(source, options, providers=list(self.execution_providers))

    def _weights_are_elsewhere(self) -> bool:
        return augmented_model.has_external_data(self.model, self._model_path.name)

    def select_tensors_to_calibrate(self, model: ModelProto) -> tuple[set[str], dict[str, ValueInfoProto]]:
        """The names of the tensors to calibrate, and what is known of the types of all values, by name."""
        found = tensors.calibrated(model.graph, self.op_types_to_calibrate)
        return set(found), tensors.infos_of(model.graph)

    def get_augment_model(self) -> ModelProto:
        """The augmented model after `augment_graph`; its large weights lie in the file of the model."""
        return self.model if self.augment_model is None else self.augment_model

    def augment_graph(self) -> None:
        """Write the model with more outputs to `augmented_model_path`."""
        raise NotImplementedError

    def compute_data(self) -> TensorsData | None:
        """The ranges of all samples that were collected."""
        raise NotImplementedError

    def collect_sample(self, outputs: Mapping[str, Array]) -> None:
        """Take the outputs of the augmented model for one sample, by name, into the statistics."""
        raise NotImplementedError

    def end_of_collection(self) -> None:
        """What is to be done after the last sample of a reader."""

    def state_arrays(self) -> dict[str, Array]:
        """The statistics as arrays by name."""
        raise NotImplementedError

    def restore_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `state_arrays` gave."""
        raise NotImplementedError

    def compute_range(self) -> dict[str, tuple[Any, Any]]:
        """The lowest and the highest value of each tensor, as tools wanted them before there was `compute_data`."""
        data = self.compute_data()
        return {} if data is None else {name: one.range_value for name, one in data.items()}

    def resume_from(self, path: str | os.PathLike[str], every: int = 50) -> None:
        """Keep the statistics in a file, written after every `every` samples, and go on from what it holds.

        Readers must give the same samples in the same order as before: those whose statistics are in the file are
        read, but not run. `errors.InvalidArgument` where the file is of another model or of other options.
        """
        if every < 1:
            raise InvalidQuantization(f"The state is to be saved after every {every} samples: give 1 or more")
        structure = self.model.SerializeToString(deterministic=True)
        self._state = StateFile(
            Path(path), every, identity_of(structure, file_stamp(self._model_path), *self.state_options())
        )
        found = self._state.load()
        if found is not None:
            self._samples, arrays = found
            self._to_skip = self._samples
            self.restore_arrays(arrays)

    def state_options(self) -> tuple[object, ...]:
        """The options on which the statistics depend."""
        operators = sorted(self.op_types_to_calibrate) if self.op_types_to_calibrate else None
        return type(self).__name__, operators, self.per_channel, self.ort_compatible

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on all samples of a reader (or of an iterable of dictionaries).

        It may be called again with other samples. `errors.InvalidArgument` where there has been no sample at all, and
        for samples that do not fit the model or give NaN or infinity.
        """
        if self.infer_session is None:
            raise InvalidQuantization("There is no session: call augment_graph() and create_inference_session() first")
        reader = as_reader(data_reader)
        unwanted = self.unwanted_outputs
        wanted = [one.name for one in self.infer_session.get_outputs() if one.name not in unwanted]
        with Progress("Calibrating", length_of(reader), self.progress) as progress:
            for sample in samples_of(reader):
                if self._to_skip:
                    self._to_skip -= 1
                else:
                    self.collect_sample(self._run(sample, wanted))
                    self._samples += 1
                    if self._state is not None and self._samples % self._state.every == 0:
                        self._state.save(self._samples, self.state_arrays())
                progress.step()
        if not self._samples:
            raise InvalidQuantization(
                "No data is collected: the calibration reader has given no sample. get_next() must give dictionaries "
                "of arrays; a reader that was read to its end before must be made anew"
            )
        if not self._to_skip:
            self.end_of_collection()
            if self._state is not None:
                self._state.save(self._samples, self.state_arrays())

    def _run(self, sample: Feed, wanted: Sequence[str]) -> dict[str, Array]:
        session = self.infer_session
        assert session is not None
        if not wanted:
            return {}
        try:
            results = session.run(wanted, dict(sample))
        except errors.OnnxRuntimeError as error:
            raise type(error)(f"Calibration sample {self._samples}: {error.message}") from error
        except (ValueError, TypeError, RuntimeError) as error:
            raise InvalidQuantization(f"Calibration sample {self._samples}: {error}") from error
        return dict(zip(wanted, results, strict=True))

    @property
    def unwanted_outputs(self) -> Collection[str]:
        """The outputs of the augmented model that need not be computed."""
        return self.model_original_outputs

    def write_augmented(self, nodes: Mapping[str, Sequence[NodeProto]], outputs: Sequence[ValueInfoProto]) -> None:
        """Write the model with these nodes, each right behind the node that makes the tensor of its key, which need not
        be kept any longer then, and with these outputs."""
        graph = self.model.graph
        makers = {name: number for number, node in enumerate(graph.node) for name in node.output}
        placed: dict[int, list[NodeProto]] = {}
        for name, added in nodes.items():
            placed.setdefault(makers.get(name, -1), []).extend(added)
        has_operators = any(entry.domain in ("", "ai.onnx") for entry in self.model.opset_import)
        augmented_model.write_with(self._model_path, Path(self.augmented_model_path), placed, outputs, has_operators)
        self.augment_model = ModelProto()
        self.augment_model.CopyFrom(self.model)
        del self.augment_model.graph.node[:]
        self.augment_model.graph.node.extend(placed.get(-1, ()))
        for number, node in enumerate(graph.node):
            self.augment_model.graph.node.extend([node, *placed.get(number, ())])
        self.augment_model.graph.output.extend(outputs)

    def extremes(
        self, names: Sequence[str], per_channel: bool
    ) -> tuple[dict[str, list[NodeProto]], list[ValueInfoProto]]:
        """The nodes that compute the smallest and the largest element of tensors, or of each of their channels, by the
        names of the tensors; and the outputs for them: ``<tensor>_ReduceMin`` and ``<tensor>_ReduceMax``."""
        infos = tensors.infos_of(self.model.graph)
        versions = [entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")]
        takes_input = max(versions, default=augmented_model.OPSET) >= _AXES_AS_INPUT
        nodes: dict[str, list[NodeProto]] = {}
        outputs: list[ValueInfoProto] = []
        for name in names:
            rank = tensors.rank_of(infos[name]) if per_channel else None
            axes = [] if rank is None or rank < 2 else [0, *range(2, rank)]
            made = nodes.setdefault(name, [])
            inputs, attributes = [name], {"axes": axes} if axes else {}
            if axes and takes_input:
                inputs, attributes = [name, f"{name}_ReduceAxes"], {}
                value = helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)
                made.append(helper.make_node("Constant", [], inputs[1:], value=value))
            for kind in ("ReduceMin", "ReduceMax"):
                result = f"{name}_{kind}"
                made.append(helper.make_node(kind, inputs, [result], name=result, keepdims=0, **attributes))
                shape = ["channels"] if axes else []
                outputs.append(helper.make_tensor_value_info(result, tensors.element_type(infos[name]), shape))
        return nodes, outputs

    def is_meant(self, tensor: str, low: float, high: float) -> bool:
        """Whether a tensor with these extremes is infinite because constants of the model are, as in a mask."""
        if np.isnan(low) or np.isnan(high) or self.ort_compatible:
            return False
        if self._infinite is None:
            self._infinite = infinities.meant(load_model(self._model_path).model.graph)
        return tensor in self._infinite

    def non_finite(self, tensor: str) -> InvalidQuantization:
        """The error for a tensor that holds NaN or infinity."""
        maker = tensors.maker_of(self.model.graph, tensor)
        return InvalidQuantization(
            f"Calibration sample {self._samples}: tensor {tensor!r} ({maker}) holds NaN or infinity, so it has no "
            "range. Leave the sample out if its inputs are wrong. If the model means it, as in the mask of an "
            "attention, take the operator out of op_types_to_calibrate (op_types_to_quantize), or use a large number"
        )
