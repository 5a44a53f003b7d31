"""Shapes of a model's values where dimensions may be given sizes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx import ModelProto, ValueInfoProto

from sardonyx.graph.constants import graphs_of
from sardonyx.ops.framework.inference import infer_model
from sardonyx.tools.symbolic_shape_infer import SymbolicShapeInference


class SymbolicShapeInferenceHelper(SymbolicShapeInference):
    """Inference over one model, whose results are asked for by the names of values.

    `int_max`, `auto_merge` and `guess_output_rank` are as for `SymbolicShapeInference`: nothing is guessed.
    """

    def __init__(
        self,
        model: ModelProto,
        verbose: int = 0,
        int_max: int = 2**31 - 1,
        auto_merge: bool = True,
        guess_output_rank: bool = False,
    ) -> None:
        self.model_ = model
        self.verbose_ = verbose
        self.int_max_ = int_max
        self.auto_merge_ = auto_merge
        self.guess_output_rank_ = guess_output_rank
        self.known_vi_: dict[str, ValueInfoProto] = {}
        self.all_shapes_inferred_ = False
        self.is_inferred_ = False
        self.dynamic_axis_mapping_: dict[str, int] = {}

    def infer(self, dynamic_axis_mapping: Mapping[str, int], max_runs: int = 200) -> bool:
        """Infer the model with these sizes for its named dimensions; whether every tensor's rank is known now.

        One pass finds everything, so `max_runs` never matters. `errors.Fail` where the model contradicts itself.
        """
        if self.is_inferred_ and self.dynamic_axis_mapping_ == dict(dynamic_axis_mapping):
            return self.all_shapes_inferred_
        self.dynamic_axis_mapping_ = dict(dynamic_axis_mapping)
        model = ir.serde.deserialize_model(self.model_)
        model.graph.sort()
        for value in model.graph.inputs:
            if value.shape is not None:
                value.shape = ir.Shape([self._size(dim) for dim in value.shape])
        infer_model(model)
        self.known_vi_.clear()
        self.all_shapes_inferred_ = True
        for graph in graphs_of(model.graph):
            made = [value for node in graph for value in node.outputs if value.name]
            for value in (*graph.initializers.values(), *graph.inputs, *made):
                if value.name and value.type is not None:
                    self.known_vi_[value.name] = ir.to_proto(value)
            ranked = [value.shape is not None for value in made if isinstance(value.type, ir.TensorType | None)]
            self.all_shapes_inferred_ = self.all_shapes_inferred_ and all(ranked)
        self.is_inferred_ = True
        return self.all_shapes_inferred_

    def _size(self, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
        if isinstance(dim, int):
            return dim
        return self.dynamic_axis_mapping_.get(dim.value or "", dim)

    def shape_of(self, name: str) -> list[int | str] | None:
        """The dimensions of a value: numbers, names or expressions of names; an unknown one gets a name of its own."""
        info = self.known_vi_.get(name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        return [
            dim.dim_value
            if dim.HasField("dim_value")
            else self.dynamic_axis_mapping_.get(dim.dim_param, dim.dim_param) or f"unk__{name}_{axis}"
            for axis, dim in enumerate(info.type.tensor_type.shape.dim)
        ]

    def get_edge_shape(self, edge: str) -> list[int | str] | None:
        """The dimensions of a value, see `shape_of`; None where they are unknown. ValueError before `infer`."""
        if not self.is_inferred_:
            raise ValueError("nothing has been inferred: call infer({}) first, or with the sizes of dimensions")
        return self.shape_of(edge)

    def compare_shape(self, edge: str, edge_other: str) -> bool:
        """Whether two values have the same dimensions; ValueError where those of one are unknown."""
        shapes = self.get_edge_shape(edge), self.get_edge_shape(edge_other)
        for name, shape in zip((edge, edge_other), shapes, strict=True):
            if shape is None:
                raise ValueError(f"the shape of {name} is unknown, so it cannot be compared")
        return shapes[0] == shapes[1]
