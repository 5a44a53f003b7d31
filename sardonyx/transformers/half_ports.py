"""Which element type each float input and output of a node has once a model is converted to float16."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onnx import NodeProto, TensorProto

from sardonyx.ops.framework.schema import Parameter, Schema, schema_of

# Operators that stay in float32 unless a caller says otherwise: for most, ONNX or onnxruntime has no float16.
DEFAULT_OP_BLOCK_LIST = [
    "ArrayFeatureExtractor",
    "Binarizer",
    "CastMap",
    "CategoryMapper",
    "DictVectorizer",
    "FeatureVectorizer",
    "Imputer",
    "LabelEncoder",
    "LinearClassifier",
    "LinearRegressor",
    "Normalizer",
    "OneHotEncoder",
    "RandomUniformLike",
    "SVMClassifier",
    "SVMRegressor",
    "Scaler",
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
    "TreeEnsemble",
    "ZipMap",
    "NonMaxSuppression",
    "TopK",
    "RoiAlign",
    "Range",
    "CumSum",
    "Min",
    "Max",
    "Upsample",
]

# Inputs that stay float32 in nodes that are converted otherwise.
ALWAYS_FLOAT_INPUTS = {"Resize": [2], "GroupNorm": [1, 2], "SkipGroupNorm": [1, 2]}

_SCALES_OF_RESIZE_10 = {"Resize": [1]}

# Operators of com.microsoft whose float parameters are float32 and nothing else.
_SINGLE_ONLY = frozenset(
    {
        "AttnLSTM",
        "CDist",
        "DequantizeWithOrder",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "DynamicTimeWarping",
        "MatMulFpQ4",
        "MaxpoolWithMask",
        "MurmurHash3",
        "NGramRepeatBlock",
        "QEmbedLayerNormalization",
        "QGemm",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearReduceMean",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
        "QOrderedAttention",
        "QOrderedGelu",
        "QOrderedLayerNormalization",
        "QOrderedLongformerAttention",
        "QOrderedMatMul",
        "QuantizeWithOrder",
        "Range",
        "SparseToDenseMatMul",
        "WordConvEmbedding",
    }
)
# Others of com.microsoft that have float32 parameters beside those of any float type: inputs, then outputs.
_SINGLE_INPUTS: Mapping[str, Sequence[int]] = {
    "GroupQueryAttention": (12, 13),
    "GreedySearch": (3,),
    "PagedAttention": (14, 15),
    "QMoE": (15, 16, 17, 18),
    "Sampling": (3,),
}
_SINGLE_OUTPUTS: Mapping[str, Sequence[int]] = {
    "Sampling": (1,),
    "SkipLayerNormalization": (1, 2),
    "SkipSimplifiedLayerNormalization": (1, 2),
}

_INTEGER_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})

_NAMES = {TensorProto.FLOAT16: "(float16)", TensorProto.BFLOAT16: "(bfloat16)"}


def scaled_sums(nodes: Sequence[NodeProto]) -> set[str]:
    """The floats by which sums of integers become numbers again: the sums, their products with scales, these scales.

    Sums of products of bytes are beyond what float16 holds, and products of scales below.
    """
    sums = {name for node in nodes if node.op_type in _INTEGER_PRODUCTS for name in node.output}
    casts = {node.output[0] for node in nodes if node.op_type == "Cast" and node.input[0] in sums}
    scaled = [node for node in nodes if node.op_type == "Mul" and not casts.isdisjoint(node.input)]
    factors = {name for node in scaled for name in node.input}
    scales = {node.output[0] for node in nodes if node.op_type == "Mul" and node.output[0] in factors}
    return casts | scales | {node.output[0] for node in scaled}


class Ports:
    """The element types of a conversion.

    A node that is converted takes and gives float16 wherever its operator allows it; a blocked one `wide` (float32 or
    bfloat16). What an operator does not take stays float32. A node is blocked by its operator, its name or its result.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        blocked_operators: Collection[str],
        blocked_nodes: Collection[str],
        forced_inputs: Mapping[str, Collection[int]],
        wide: int,
        blocked_results: Collection[str] = (),
    ) -> None:
        self.opsets = opsets
        self.wide = wide
        self._blocked_operators = frozenset(blocked_operators)
        self._blocked_nodes = frozenset(blocked_nodes)
        self._blocked_results = frozenset(blocked_results)
        self._forced = forced_inputs
        self._kept: Mapping[str, Collection[int]] = ALWAYS_FLOAT_INPUTS
        if opsets.get("", 11) <= 10:
            self._kept = {**ALWAYS_FLOAT_INPUTS, **_SCALES_OF_RESIZE_10}

    def is_blocked(self, node: NodeProto) -> bool:
        by_name = node.op_type in self._blocked_operators or node.name in self._blocked_nodes
        return by_name or not self._blocked_results.isdisjoint(node.output)

    def input(self, node: NodeProto, index: int, blocked: bool) -> int:
        """The element type of a float input."""
        if not blocked:
            if index in self._forced.get(node.op_type, ()):
                return int(TensorProto.FLOAT16)
            if index in self._kept.get(node.op_type, ()):
                return int(TensorProto.FLOAT)
        schema = self._schema(node)
        formal = _formal(schema.inputs if schema else None, index)
        return self._element(node, formal, index in _SINGLE_INPUTS.get(node.op_type, ()), blocked)

    def output(self, node: NodeProto, index: int, blocked: bool) -> int:
        """The element type of a float output."""
        schema = self._schema(node)
        formal = _formal(schema.outputs if schema else None, index)
        return self._element(node, formal, index in _SINGLE_OUTPUTS.get(node.op_type, ()), blocked)

    def _element(self, node: NodeProto, formal: Parameter | None, single: bool, blocked: bool) -> int:
        if node.domain == "com.microsoft" and (single or node.op_type in _SINGLE_ONLY):
            return int(TensorProto.FLOAT)
        wanted = self.wide if blocked else int(TensorProto.FLOAT16)
        return wanted if wanted == TensorProto.FLOAT or _takes(formal, wanted) else int(TensorProto.FLOAT)

    def _schema(self, node: NodeProto) -> Schema | None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        return schema_of(domain, node.op_type, self.opsets.get(domain, 1))


def _formal(formals: Sequence[Parameter] | None, index: int) -> Parameter | None:
    """The declaration of a parameter; the last one stands for all that follow, as variadic ones do."""
    return formals[min(index, len(formals) - 1)] if formals else None


def _takes(formal: Parameter | None, element: int) -> bool:
    """Whether a parameter may have this element type; one of which nothing is known may have any."""
    return formal is None or not formal.types or any(_NAMES[element] in kind for kind in formal.types)
