"""``python -m sardonyx.tools.symbolic_shape_infer``: write the shapes that inference finds into a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import onnx
import onnx_ir as ir
from onnx import GraphProto, ModelProto, TensorProto

from sardonyx import log
from sardonyx.graph.saving import to_message, write_message
from sardonyx.graph.value_types import check_type, restore_maps
from sardonyx.ops.framework.inference import infer_model


class SymbolicShapeInference:
    """Shapes with symbolic dimensions for every value of a model, those of com.microsoft's operators included."""

    @staticmethod
    def infer_shapes(
        in_mp: ModelProto,
        int_max: int = 2**31 - 1,
        auto_merge: bool = False,
        guess_output_rank: bool = False,
        verbose: int = 0,
    ) -> ModelProto:
        """A copy of the model with the shapes of its values; dimensions are numbers, names or expressions of names.

        errors.Fail, with the node's name, where the model contradicts itself. `auto_merge` and `guess_output_rank`
        have no effect: a dimension that two inputs name differently stays unknown instead of being guessed, as does
        an unknown rank. `int_max` bounded slices in onnxruntime, whose ends are known here.

        As there, `value_info` holds the outputs of all nodes, those of the graph included.
        """
        model = ir.serde.deserialize_model(_readable(in_mp))
        restore_maps(model)
        infer_model(model)
        if verbose:
            unknown = [value.name for node in model.graph for value in node.outputs if value.shape is None]
            log.DEFAULT.warning(f"shape inference: {len(unknown)} values of unknown rank: {unknown[:20]}")
        inferred = to_message(model)
        _list_results(inferred.graph, [info.name for info in in_mp.graph.value_info])
        return inferred


def _readable(model: ModelProto) -> ModelProto:
    """A copy whose types onnx-ir reads; undefined ones are left out."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for info in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        kind = info.type.WhichOneof("value")
        if kind == "tensor_type" and info.type.tensor_type.elem_type == TensorProto.UNDEFINED:
            info.type.Clear()
        elif kind is not None:
            check_type(info)
    return copy


def _list_results(graph: GraphProto, listed: Sequence[str]) -> None:
    """Leave in `value_info` what nodes compute, and the names that were `listed` before."""
    computed = {name for node in graph.node for name in node.output if name}
    infos = [info for info in graph.value_info if info.name in computed or info.name in listed]
    present = {info.name for info in infos}
    infos += [info for info in graph.output if info.name in computed - present and info.type.WhichOneof("value")]
    kept = GraphProto(value_info=infos).value_info
    del graph.value_info[:]
    graph.value_info.extend(kept)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True, help="model to read")
    parser.add_argument("--output", help="model to write")
    parser.add_argument("--auto_merge", action="store_true", help="accepted, see SymbolicShapeInference")
    parser.add_argument("--int_max", type=int, default=2**31 - 1, help="accepted, see SymbolicShapeInference")
    parser.add_argument("--guess_output_rank", action="store_true", help="accepted, see SymbolicShapeInference")
    parser.add_argument("--verbose", type=int, default=0, help="1 lists values of unknown rank")
    parser.add_argument("--save_as_external_data", action="store_true", help="write weights to files of their own")
    parser.add_argument("--all_tensors_to_one_file", action="store_true", help="one file for all weights")
    parser.add_argument("--external_data_location", help="the name of that file")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024, help="smaller weights stay")
    args = parser.parse_args(arguments)
    found = SymbolicShapeInference.infer_shapes(
        onnx.load(args.input), args.int_max, args.auto_merge, args.guess_output_rank, args.verbose
    )
    if args.output and not args.save_as_external_data:
        write_message(found, args.output)
    elif args.output:
        onnx.save_model(
            found,
            args.output,
            save_as_external_data=True,
            all_tensors_to_one_file=args.all_tensors_to_one_file,
            location=args.external_data_location,
            size_threshold=args.external_data_size_threshold,
        )


if __name__ == "__main__":
    main()
