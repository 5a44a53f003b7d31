"""The names by which callers leave out optimisations: those of the passes, of what the plan maker does, and of
onnxruntime's transformers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sardonyx import log
from sardonyx.api.options.run_settings import PLAN_OPTIMIZERS
from sardonyx.passes.base import Level
from sardonyx.passes.pipeline import passes_up_to

# Transformers of onnxruntime 1.31 that have another name here.
_ALIASES = {"ReluQuantRewrite": "ReluQuantFusion"}

# All of them: lists that were written for onnxruntime name them, and that is no slip where nothing here does the same.
_OF_ONNXRUNTIME = frozenset(
    {
        *("AttentionFusion", "Avx2WeightS8ToU8Transformer", "BiasDropoutFusion", "BiasGeluFusion"),
        *("BiasSkipLayerNormFusion", "BiasSoftmaxFusion", "CastChainElimination", "CastElimination"),
        *("CastFloat16Transformer", "ClipQuantRewrite", "CommonSubexpressionElimination", "ConstantFolding"),
        *("ConstantFoldingDQ", "ConstantSharing", "ConvActivationFusion", "ConvAddActivationFusion", "ConvAddFusion"),
        *("ConvBNFusion", "ConvMulFusion", "DQMatMulNBitsFusion", "DQMatMulToMatMulNBits", "DivMulFusion"),
        *("DoubleQDQPairsRemover", "DynamicQuantizeMatMulFusion", "EliminateDropout", "EliminateIdentity"),
        *("EliminateSlice", "EmbedLayerNormFusion", "ExpandElimination", "FastGeluFusion"),
        *("FreeDimensionOverrideTransformer", "FuseFp16InitializerToFp32NodeTransformer", "FuseReluClip"),
        *("GatherSliceToSplitFusion", "GatherToSliceFusion", "GeluApproximation", "GeluFusionL1", "GeluFusionL2"),
        *("GemmActivationFusion", "GemmSumFusion", "GemmTransposeFusion", "GqaValueLayoutTransformer"),
        *("GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion", "InsertCastTransformer"),
        *("LabelEncoderFusion", "LayerNormFusionL1", "LayerNormFusionL2", "MatMulActivationFusion", "MatMulAddFusion"),
        *("MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "MatMulNBitsMlpFusion", "MatMulNBitsQkvFusion"),
        *("MatMulScaleFusion", "MatMul_BatchNormalization_Fusion", "MatmulTransposeFusion", "MemcpyTransformer"),
        *("NhwcTransformer", "NoopElimination", "NotWhereFusion", "Pad_Fusion", "PreShapeNodeElimination"),
        *("QDQFinalCleanupTransformer", "QDQPropagationTransformer", "QDQS8ToU8Transformer"),
        *("QDQSelectorActionTransformer", "QuickGeluFusion", "RemoveDuplicateCastTransformer", "ReluQuantRewrite"),
        *("ReshapeFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion", "SliceConcatToSpaceToDepthFusion"),
        *("STFTDecomposition", "TransposeOptimizer", "UnsqueezeElimination", "WeightBiasQuantization"),
        *("Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer"),
    }
)


def own_names() -> frozenset[str]:
    """The names of everything that a session can leave out."""
    return PLAN_OPTIMIZERS.union(one.name for one in passes_up_to(Level.ALL))


def resolved(names: Iterable[str], logger: log.Logger) -> frozenset[str]:
    """The names here of what a caller wants left out; a warning for each that nobody knows, with the nearest ones."""
    given = dict.fromkeys(names)
    if not given:
        return frozenset()
    known = own_names()
    for name in given:
        if name not in known and name not in _OF_ONNXRUNTIME:
            logger.warning(_unknown(name, known), "session")
    return frozenset(_ALIASES.get(name, name) for name in given)


def _unknown(name: str, known: Collection[str]) -> str:
    import difflib  # which few sessions need

    folded = {one.casefold(): one for one in sorted(known)}
    near = difflib.get_close_matches(name.casefold(), folded, cutoff=0.5)
    wish = f"did you mean {' or '.join(folded[one] for one in near)}?" if near else "docs/rewrites.md lists them"
    return f"No optimizer is called '{name}', so nothing is left out for it: {wish}"
