"""Which fusions `optimize_model` does, and which passes they are."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sardonyx.passes.base import MaskFormat, Settings

# Options of one kind of model, which others do not have.
_DIFFUSION = ("unet", "vae", "clip")
_DIFFUSION_OPTIONS = (
    "enable_nhwc_conv",
    "enable_group_norm",
    "enable_skip_group_norm",
    "enable_bias_splitgelu",
    "enable_packed_qkv",
    "enable_packed_kv",
    "enable_bias_add",
)

# The passes that an option switches off where it is False.
PASSES_OF_OPTIONS = {
    "enable_gelu": ("GeluFusionL2", "FastGeluFusion", "QuickGeluFusion"),
    "enable_layer_norm": ("LayerNormFusionL2", "SimplifiedLayerNormFusion"),
    "enable_attention": (
        "AttentionFusion",
        "AttentionMaskFusion",
        "AttentionProjectionFusion",
        "MultiHeadAttentionBiasFusion",
    ),
    "enable_rotary_embeddings": ("RotaryEmbeddingFusion", "PartialRotaryEmbeddingFusion"),
    "enable_skip_layer_norm": ("SkipLayerNormFusion", "SkipSimplifiedLayerNormFusion"),
    "enable_bias_skip_layer_norm": ("BiasSkipLayerNormFusion",),
    "enable_embed_layer_norm": ("EmbedLayerNormFusion",),
    "enable_bias_gelu": ("BiasGeluFusion",),
}
# The optional passes that an option switches on.
_OPTIONAL_PASSES = {
    "enable_gelu_approximation": "GeluApproximation",
    "enable_gemm_fast_gelu": "GemmFastGeluFusion",
}


class AttentionMaskFormat:
    """What becomes of the padding mask of attention: numbers, as callers compare them."""

    MaskIndexEnd = 0  # lengths of sequences that are padded on the right
    MaskIndexEndAndStart = 1
    AttentionMask = 2  # 1 for tokens and 0 for padding
    NoMask = 3


class AttentionOpType(Enum):
    """The operators that attention may become."""

    Attention = "Attention"
    MultiHeadAttention = "MultiHeadAttention"
    GroupQueryAttention = "GroupQueryAttention"
    PagedAttention = "PagedAttention"

    def __str__(self) -> str:
        return self.value


class FusionOptions:
    """What is fused, and into what: every attribute may be set."""

    def __init__(self, model_type: str) -> None:
        self.enable_gelu = True
        self.enable_layer_norm = True
        self.enable_attention = True
        self.enable_rotary_embeddings = True
        # MultiHeadAttention leaves the projections outside, which Attention holds.
        self.use_multi_head_attention = False
        self.disable_multi_head_attention_bias = False
        self.enable_skip_layer_norm = True
        self.enable_embed_layer_norm = model_type not in ("clip", "qwen3")
        self.enable_bias_skip_layer_norm = True
        self.enable_bias_gelu = True
        self.enable_gelu_approximation = False
        self.enable_qordered_matmul = True
        self.enable_shape_inference = True
        self.enable_gemm_fast_gelu = False
        self.group_norm_channels_last = True
        self.attention_mask_format = {
            "bert": AttentionMaskFormat.MaskIndexEnd,
            "vit": AttentionMaskFormat.NoMask,
            "qwen3": AttentionMaskFormat.NoMask,
        }.get(model_type, AttentionMaskFormat.AttentionMask)
        self.attention_op_type: AttentionOpType | None = None
        if model_type in _DIFFUSION:
            for name in _DIFFUSION_OPTIONS:
                setattr(self, name, True)

    def use_raw_attention_mask(self, use_raw_mask: bool = True) -> None:
        """Take the mask as it is, or as lengths of sequences."""
        self.attention_mask_format = (
            AttentionMaskFormat.AttentionMask if use_raw_mask else AttentionMaskFormat.MaskIndexEnd
        )

    def disable_attention_mask(self) -> None:
        """Leave padding masks out: every token attends to all."""
        self.attention_mask_format = AttentionMaskFormat.NoMask

    def set_attention_op_type(self, attn_op_type: AttentionOpType | None) -> None:
        """Choose the operator that attention becomes."""
        self.attention_op_type = attn_op_type

    @staticmethod
    def parse(args: Any) -> FusionOptions:
        """The options that command-line arguments stand for; `args` has `model_type` and the flags as attributes."""
        options = FusionOptions(args.model_type)
        for flag in _flags():
            if (flag.models and args.model_type not in flag.models) or not getattr(args, flag.name):
                continue
            if flag.option is not None:
                setattr(options, flag.option, flag.value)
        if args.use_mask_index:
            options.use_raw_attention_mask(False)
        if args.use_raw_attention_mask:
            options.use_raw_attention_mask(True)
        if args.no_attention_mask:
            options.disable_attention_mask()
        return options

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the flags that `parse` reads."""
        for flag in _flags():
            parser.add_argument(f"--{flag.name}", action="store_true", default=False, help=flag.help)


@dataclass(frozen=True)
class _Flag:
    """A flag of the command line, and the option that it sets; without one, `FusionOptions.parse` says what it does."""

    name: str
    option: str | None
    value: bool
    help: str
    models: tuple[str, ...] = ()


def _flags() -> tuple[_Flag, ...]:
    def off(name: str, option: str, what: str, models: tuple[str, ...] = ()) -> _Flag:
        only = f" ({', '.join(models)} only)" if models else ""
        return _Flag(name, option, False, f"do not make {what}{only}", models)

    return (
        off("disable_attention", "enable_attention", "Attention or MultiHeadAttention"),
        off("disable_skip_layer_norm", "enable_skip_layer_norm", "SkipLayerNormalization"),
        off("disable_embed_layer_norm", "enable_embed_layer_norm", "EmbedLayerNormalization"),
        off("disable_bias_skip_layer_norm", "enable_bias_skip_layer_norm", "SkipLayerNormalization with a bias"),
        off("disable_bias_gelu", "enable_bias_gelu", "BiasGelu, or FastGelu with a bias"),
        off("disable_layer_norm", "enable_layer_norm", "LayerNormalization or RMS normalisation"),
        off("disable_gelu", "enable_gelu", "Gelu, FastGelu or QuickGelu"),
        off("disable_rotary_embeddings", "enable_rotary_embeddings", "RotaryEmbedding"),
        _Flag("enable_gelu_approximation", "enable_gelu_approximation", True, "make FastGelu of Gelu and BiasGelu"),
        _Flag("enable_gemm_fast_gelu", "enable_gemm_fast_gelu", True, "make GemmFastGelu of a product and FastGelu"),
        _Flag("disable_shape_inference", "enable_shape_inference", False, "leave inferred shapes out of the model"),
        _Flag("use_multi_head_attention", "use_multi_head_attention", True, "make MultiHeadAttention, not Attention"),
        _Flag("use_mask_index", None, True, "masks are lengths of sequences, which are padded on the right"),
        _Flag("use_raw_attention_mask", None, True, "masks are 1 for tokens and 0 for padding"),
        _Flag("no_attention_mask", None, True, "leave padding masks out: every token attends to all"),
        off("disable_nhwc_conv", "enable_nhwc_conv", "NhwcConv", _DIFFUSION),
        off("disable_group_norm", "enable_group_norm", "GroupNorm", _DIFFUSION),
        off("disable_skip_group_norm", "enable_skip_group_norm", "SkipGroupNorm", _DIFFUSION),
        off("disable_bias_splitgelu", "enable_bias_splitgelu", "BiasSplitGelu", _DIFFUSION),
        off("disable_packed_qkv", "enable_packed_qkv", "packed queries, keys and values", _DIFFUSION),
        off("disable_packed_kv", "enable_packed_kv", "packed keys and values", _DIFFUSION),
        off("disable_bias_add", "enable_bias_add", "BiasAdd", _DIFFUSION),
        off("use_group_norm_channels_first", "group_norm_channels_last", "GroupNorm with channels last", _DIFFUSION),
    )


def disabled_passes(options: FusionOptions) -> frozenset[str]:
    """The passes that options leave out."""
    names = {name for option, passes in PASSES_OF_OPTIONS.items() if not getattr(options, option) for name in passes}
    if options.use_multi_head_attention or options.attention_op_type is AttentionOpType.MultiHeadAttention:
        names.add("AttentionProjectionFusion")
    if options.disable_multi_head_attention_bias:
        names.add("MultiHeadAttentionBiasFusion")
    return frozenset(names)


def pass_settings(options: FusionOptions) -> Settings:
    """What passes are told by options."""
    enabled = frozenset(name for option, name in _OPTIONAL_PASSES.items() if getattr(options, option))
    no_mask = options.attention_mask_format == AttentionMaskFormat.NoMask
    return Settings(enabled=enabled, mask_format=MaskFormat.NONE if no_mask else MaskFormat.RAW)
