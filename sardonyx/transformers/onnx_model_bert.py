"""`BertOnnxModel`: a transformer model whose operators are fused; the models of other families are subclasses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from onnx import ModelProto, NodeProto, TensorProto

from sardonyx import errors
from sardonyx.graph.load import LoadedModel
from sardonyx.passes.base import DEFAULT, Level, Settings
from sardonyx.transformers import rewriting
from sardonyx.transformers.fusion_options import (
    PASSES_OF_OPTIONS,
    FusionOptions,
    disabled_passes,
    pass_settings,
)
from sardonyx.transformers.fusion_utils import FusionUtils
from sardonyx.transformers.large_weights import load_proto
from sardonyx.transformers.onnx_model import OnnxModel

logger = logging.getLogger(__name__)

_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PagedAttention", "QOrderedAttention")


class BertOnnxModel(OnnxModel):
    """A model with the number of heads and the hidden size of its attention, 0 until they are found in the graph.

    ValueError for a hidden size that the heads do not divide.
    """

    # What belongs to a family: the default of its options, passes that would give operators it does not want, and the
    # operators that its statistics count.
    model_type: ClassVar[str] = "bert"
    left_out: ClassVar[frozenset[str]] = frozenset()
    counted: ClassVar[Sequence[str]] = (
        "EmbedLayerNormalization",
        "Attention",
        "MultiHeadAttention",
        "Gelu",
        "FastGelu",
        "BiasGelu",
        "GemmFastGelu",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "RotaryEmbedding",
        "QOrderedAttention",
        "QOrderedGelu",
        "QOrderedLayerNormalization",
        "QOrderedMatMul",
    )

    def __init__(self, model: ModelProto, num_heads: int = 0, hidden_size: int = 0) -> None:
        if hidden_size % num_heads if num_heads else hidden_size:
            raise ValueError(
                f"num_heads={num_heads}, hidden_size={hidden_size}: the heads must divide the hidden size; give both, "
                "or neither to have them found in the graph"
            )
        super().__init__(model)
        self.num_heads = num_heads
        self.hidden_size = hidden_size
        self.utils = FusionUtils(self)

    # Fusion

    def optimize(self, options: FusionOptions | None = None, add_dynamic_axes: bool = False) -> None:
        """Fuse what the options allow, and remove nodes, weights and inputs that are not needed any more.

        With `add_dynamic_axes` batch and length of the inputs become symbolic. `errors.OnnxRuntimeError` for a model
        that is wrong in itself.
        """
        self.optimize_loaded(load_proto(self.model), options or FusionOptions(self.model_type), Level.DISABLED)
        if add_dynamic_axes:
            self.use_dynamic_axes()

    def optimize_loaded(self, loaded: LoadedModel, options: FusionOptions, level: Level) -> None:
        """Hold a loaded model with what the options allow fused, and what a session of the level would do besides."""
        disabled = disabled_passes(options) | self.left_out
        rewriting.fused(loaded, level, disabled, pass_settings(options))
        self._take(rewriting.message(loaded, options.enable_shape_inference))
        if not options.enable_shape_inference:
            self.disable_shape_inference()
        self.prune_graph()
        self._find_sizes()
        logger.info("opset version: %d", self.get_opset_version())

    def _rewrite(self, disabled: Iterable[str], settings: Settings = DEFAULT) -> None:
        loaded = load_proto(self.model)
        rewriting.fused(loaded, Level.DISABLED, {*disabled, *self.left_out}, settings)
        self._take(rewriting.message(loaded))

    def _take(self, proto: ModelProto) -> None:
        """Hold a rewritten model; what the caller chose for this one stays."""
        inferring = self.enable_shape_infer
        self.initialize(proto)
        self.enable_shape_infer = inferring

    def _fuse(self, *names: str) -> None:
        self._rewrite(rewriting.fusion_names(names))

    def fuse_attention(self) -> None:
        """Make Attention or MultiHeadAttention."""
        self._fuse(*PASSES_OF_OPTIONS["enable_attention"])
        self._find_sizes()

    def fuse_gelu(self) -> None:
        """Make Gelu, FastGelu and QuickGelu."""
        self._fuse(*PASSES_OF_OPTIONS["enable_gelu"])

    def fuse_bias_gelu(self, is_fastgelu: bool) -> None:
        """Put the bias before Gelu, or before FastGelu, into one node with it; both are done at once."""
        self._fuse(*PASSES_OF_OPTIONS["enable_bias_gelu"])

    def gelu_approximation(self) -> None:
        """Make FastGelu of Gelu and BiasGelu."""
        self._rewrite(rewriting.fusion_names(["GeluApproximation"]), Settings(enabled=frozenset({"GeluApproximation"})))

    def fuse_gemm_fast_gelu(self) -> None:
        """Make GemmFastGelu of a product and FastGelu."""
        self._rewrite(
            rewriting.fusion_names(["GemmFastGeluFusion"]), Settings(enabled=frozenset({"GemmFastGeluFusion"}))
        )

    def fuse_layer_norm(self) -> None:
        """Make LayerNormalization."""
        self._fuse("LayerNormFusionL2")

    def fuse_simplified_layer_norm(self) -> None:
        """Make SimplifiedLayerNormalization."""
        self._fuse("SimplifiedLayerNormFusion")

    def fuse_skip_layer_norm(self, shape_infer: bool = True) -> None:
        """Make SkipLayerNormalization of a sum and its normalisation."""
        self._fuse("SkipLayerNormFusion")

    def fuse_skip_simplified_layer_norm(self) -> None:
        """Make SkipSimplifiedLayerNormalization of a sum and its normalisation."""
        self._fuse("SkipSimplifiedLayerNormFusion")

    def fuse_add_bias_skip_layer_norm(self) -> None:
        """Put the bias before SkipLayerNormalization into it."""
        self._fuse(*PASSES_OF_OPTIONS["enable_bias_skip_layer_norm"])

    def fuse_embed_layer(self, use_mask_index: bool = False) -> None:
        """Make EmbedLayerNormalization of the embeddings, their sum and its normalisation."""
        self._fuse(*PASSES_OF_OPTIONS["enable_embed_layer_norm"])

    def fuse_constant_fold(self) -> None:
        """Compute what reads constants alone, and leave out nodes without effect."""
        self._fuse()

    fuse_reshape = fuse_constant_fold
    fuse_shape = fuse_constant_fold

    # What was fused

    def get_fused_operator_statistics(self) -> dict[str, int]:
        """How many nodes there are of each operator that fusion makes."""
        counts = {name: len(self.get_nodes_by_op_type(name)) for name in self.counted}
        logger.info("Optimized operators: %s", counts)
        return counts

    def is_fully_optimized(self, fused_op_count: Mapping[str, int] | None = None) -> bool:
        """Whether embeddings are fused and every layer has attention, an activation and two normalisations."""
        counts = self.get_fused_operator_statistics() if fused_op_count is None else fused_op_count
        embeddings = counts.get("EmbedLayerNormalization", 0)
        attention = _sum(counts, "Attention", "MultiHeadAttention", "QOrderedAttention")
        activations = _sum(counts, "Gelu", "BiasGelu", "FastGelu")
        normalised = max(
            _sum(counts, "LayerNormalization", "SkipLayerNormalization"),
            _sum(counts, "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"),
        )
        if attention == 0:
            logger.warning("Attention (or MultiHeadAttention) not fused")
        return bool(embeddings and attention and attention == activations and normalised >= 2 * attention)

    def _find_sizes(self) -> None:
        """Read number of heads and hidden size off the fused attention; what the caller gave may be wrong."""
        for node in (node for name in _ATTENTIONS for node in self.get_nodes_by_op_type(name)):
            heads = self.get_node_attribute(node, "num_heads")
            size = self._hidden_size(node)
            if not heads or not size:
                continue
            if (self.num_heads or heads, self.hidden_size or size) != (heads, size):
                logger.warning(
                    "num_heads=%d, hidden_size=%d are given, but attention has %d heads and size %d: these are used",
                    self.num_heads,
                    self.hidden_size,
                    heads,
                    size,
                )
            self.num_heads, self.hidden_size = int(heads), size
            return

    def _hidden_size(self, node: NodeProto) -> int:
        """The width of queries: a third of the joint projection of Attention, or the last dimension of the input."""
        if node.op_type == "Attention" and len(node.input) > 1:
            sizes = self.get_node_attribute(node, "qkv_hidden_sizes")
            weight = self.get_initializer(node.input[1])
            if sizes:
                return int(sizes[0])
            return int(weight.dims[-1]) // 3 if weight is not None and len(weight.dims) == 2 else 0
        shape = self.get_shape(node.input[0])
        width = shape[-1] if shape else 0
        return width if isinstance(width, int) else 0

    # Inputs and outputs

    def get_graph_inputs_from_node_type(self, op_type: str, input_indices: Sequence[int], casted: bool) -> list[str]:
        """The inputs of the model that nodes of an operator read at these places: by way of a Cast, or directly."""
        producers = self.output_name_to_node()
        found: list[str] = []
        for node in self.get_nodes_by_op_type(op_type):
            for name in (node.input[index] for index in input_indices if index < len(node.input)):
                parent = producers.get(name)
                if casted and parent is not None and parent.op_type == "Cast":
                    name = parent.input[0]
                elif casted:
                    continue
                if self.find_graph_input(name) is not None:
                    found.append(name)
        return found

    def get_graph_inputs_from_fused_nodes(self, casted: bool) -> list[str]:
        """The inputs of the model with tokens, segments and masks."""
        embeddings = self.get_graph_inputs_from_node_type("EmbedLayerNormalization", [0, 1, 7], casted)
        return embeddings + self.get_graph_inputs_from_node_type("Attention", [3], casted)

    def change_graph_inputs_to_int32(self) -> None:
        """Make the inputs of int64 such of int32, with a Cast for readers that take int64 alone."""
        added = removed = 0
        for graph_input in self.model.graph.input:
            if graph_input.type.tensor_type.elem_type == TensorProto.INT64:
                cast, casts = self.change_graph_input_type(graph_input, TensorProto.INT32)
                added += cast is not None
                removed += len(casts)
        logger.info("Graph inputs are int32 now. Added %d Cast nodes, removed %d", added, removed)

    def use_dynamic_axes(
        self, dynamic_batch_dim: str = "batch_size", dynamic_seq_len: str | None = "max_seq_len"
    ) -> None:
        """Give batch and length of the inputs with tokens, segments and masks, and batch of the outputs, these names.

        `errors.Fail` for an input of another rank.
        """
        names = {*self.get_graph_inputs_from_fused_nodes(True), *self.get_graph_inputs_from_fused_nodes(False)}
        for value in self.model.graph.input:
            if value.name in names:
                dims = value.type.tensor_type.shape.dim
                if len(dims) < 2:
                    raise errors.Fail(f"The input {value.name} has {len(dims)} dimensions, not batch and length")
                dims[0].dim_param = dynamic_batch_dim
                if dynamic_seq_len is not None:
                    dims[1].dim_param = dynamic_seq_len
        for value in self.model.graph.output:
            if value.type.tensor_type.shape.dim:
                value.type.tensor_type.shape.dim[0].dim_param = dynamic_batch_dim

    def convert_to_packing_mode(self, use_symbolic_shape_infer: bool = False) -> None:
        """Always `errors.NotImplemented`: models without padding between sequences are for GPUs."""
        raise errors.NotImplemented(
            "convert_to_packing_mode: RemovePadding and PackedAttention have no CPU kernel in onnxruntime; leave the "
            "model as it is, or shorten batches to their longest sequence"
        )


def _sum(counts: Mapping[str, int], *names: str) -> int:
    return sum(counts.get(name, 0) for name in names)
