"""Options of fusion, their flags, and the passes that they are."""

from __future__ import annotations

import argparse

import pytest

from sardonyx.passes import pipeline
from sardonyx.transformers import fusion_options
from sardonyx.transformers.fusion_options import AttentionMaskFormat, AttentionOpType, FusionOptions

KINDS = ["bert", "bart", "gpt2", "vit", "clip", "unet", "vae", "t5", "qwen3", "unheard_of"]
FLAGS = [flag.name for flag in fusion_options._flags()]


def peer():
    return pytest.importorskip("onnxruntime.transformers.fusion_options")


def parser_of(module) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    module.FusionOptions.add_arguments(parser)
    return parser


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_onnxruntime(kind: str) -> None:
    assert vars(FusionOptions(kind)) == vars(peer().FusionOptions(kind))


@pytest.mark.parametrize("kind", ["bert", "unet"])
@pytest.mark.parametrize("flag", FLAGS)
def test_flags_set_what_they_set_in_onnxruntime(kind: str, flag: str) -> None:
    found = []
    for module in (fusion_options, peer()):
        args = parser_of(module).parse_args([f"--{flag}"])
        args.model_type = kind
        found.append(vars(module.FusionOptions.parse(args)))
    assert found[0] == found[1]


def test_flags_are_those_of_onnxruntime() -> None:
    ours, theirs = ({action.dest for action in parser_of(module)._actions} for module in (fusion_options, peer()))
    assert ours == theirs
    for module in (fusion_options, peer()):
        args = parser_of(module).parse_args([])
        args.model_type = "clip"
        assert vars(module.FusionOptions.parse(args)) == vars(peer().FusionOptions("clip"))


def test_parsing_reads_no_attribute_that_clients_do_not_give() -> None:
    """Optimum passes an object of its own, without the flags of other kinds of models."""
    only_diffusion = {flag.name for flag in fusion_options._flags() if flag.models}
    given = argparse.Namespace(model_type="bert", **{name: False for name in FLAGS if name not in only_diffusion})
    assert vars(FusionOptions.parse(given)) == vars(FusionOptions("bert"))


def test_masks_and_operators_of_attention() -> None:
    options = FusionOptions("bert")
    options.use_raw_attention_mask()
    assert (
        options.attention_mask_format == AttentionMaskFormat.AttentionMask == peer().AttentionMaskFormat.AttentionMask
    )
    options.use_raw_attention_mask(False)
    assert options.attention_mask_format == AttentionMaskFormat.MaskIndexEnd
    options.disable_attention_mask()
    assert options.attention_mask_format == AttentionMaskFormat.NoMask
    options.set_attention_op_type(AttentionOpType.MultiHeadAttention)
    assert str(options.attention_op_type) == "MultiHeadAttention"
    assert {item.name: item.value for item in AttentionOpType} == {
        item.name: item.value for item in peer().AttentionOpType
    }


def test_every_pass_of_an_option_exists() -> None:
    names = {one.name for one in pipeline.passes_for_saving()}
    for passes in fusion_options.PASSES_OF_OPTIONS.values():
        assert names.issuperset(passes)
    options = FusionOptions("bert")
    options.enable_gelu_approximation = options.enable_gemm_fast_gelu = True
    assert fusion_options.pass_settings(options).enabled <= {
        one.name for one in pipeline.passes_for_saving() if one.optional
    }
    options.use_multi_head_attention = options.disable_multi_head_attention_bias = True
    assert names > fusion_options.disabled_passes(options)
