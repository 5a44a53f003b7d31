"""What to do where a program imports a module of onnxruntime that this package does not have.

The error stays the one of any module that is not there, with a sentence more. Who only asks whether there is such a
module (`importlib.util.find_spec`) is told that there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_ELSEWHERE = "use onnxruntime's, in an environment of its own"

# By the path below the package, the remedy for it and all below it; the longest path counts.
REMEDIES = {
    "quantization.cuda_quantizer": f"weights are packed for CUDA by onnxruntime alone: {_ELSEWHERE}",
    "training": "models are run here, not trained; train with PyTorch, for example, and export the result to ONNX",
    "capi.training": "models are run here, not trained; train with PyTorch, for example, and export the result to ONNX",
    "capi._ld_preload": "no libraries have to be loaded before this package",
    "capi.onnxruntime_collect_build_info": "sardonyx.get_build_info() says what there is to know",
    "capi.convert_npz_to_onnx_adapter": f"adapters are read and not written here: {_ELSEWHERE}; LoraAdapter loads them",
    "tools.convert_onnx_models_to_ort": "models in ORT format are neither written nor read: load the ONNX model",
    "tools.ort_format_model": "models in ORT format are neither written nor read: load the ONNX model",
    "tools.check_onnx_model_mobile_usability": f"it is about builds for phones: {_ELSEWHERE}",
    "tools.mobile_helpers": f"it is about builds for phones: {_ELSEWHERE}",
    "tools.reduced_build_config_parser": f"it is about builds of onnxruntime: {_ELSEWHERE}",
    "tools.optimize_onnx_model": "sardonyx.tools.onnx_model_utils.optimize_model is the function",
    "tools.update_onnx_opset": "sardonyx.tools.onnx_model_utils.update_onnx_opset is the function",
    "tools.offline_tuning": "`sardonyx tune-kernels` tunes for this machine",
    "tools.onnx_randomizer": f"{_ELSEWHERE}",
    "tools.pytorch_export_contrib_ops": (
        "torch.onnx.export(dynamo=True) needs no such functions; the operators themselves run here"
    ),
    "tools.qdq_helpers": f"models are not quantized here, but quantized ones run: {_ELSEWHERE}",
    "tools.qnn": "QNN is a provider of onnxruntime alone",
    "transformers.models": f"scripts that export and convert models are not here: {_ELSEWHERE}; their models run here",
    "transformers.convert_generation": f"models are not converted to BeamSearch here: {_ELSEWHERE}",
    "transformers.benchmark": "`sardonyx run` and `sardonyx explain --run` measure a model",
    "transformers.bert_perf_test": "`sardonyx run` and `sardonyx explain --run` measure a model",
    "transformers.profiler": "`sardonyx explain --run` says what each kernel takes",
    "transformers.profile_result_processor": "`sardonyx explain --run --json` gives the numbers for each kernel",
    "transformers.compare_bert_results": f"{_ELSEWHERE}",
    "transformers.machine_info": "`sardonyx explain --json` names the machine's ceilings",
    "transformers.onnx_exporter": "torch.onnx.export(dynamo=True), or Optimum, exports models",
    "transformers.large_model_exporter": "torch.onnx.export(dynamo=True), or Optimum, exports models",
    "transformers.dynamo_onnx_helper": "torch.onnx.export(dynamo=True), or Optimum, exports models",
    "transformers.huggingface_models": "torch.onnx.export(dynamo=True), or Optimum, exports models",
    "transformers.quantize_helper": f"models are not quantized here, but quantized ones run: {_ELSEWHERE}",
}
# Modules of one fusion each, of which there are many.
_FUSIONS = "transformers.fusion_"
_OF_FUSIONS = "no fusion has a module of its own: sardonyx.transformers.optimizer does them all"


def remedy(name: str) -> str:
    """What to do without a module, by its path below the package; empty where nothing is known of it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        found = REMEDIES.get(".".join(parts[:length]))
        if found is not None:
            return found
    return _OF_FUSIONS if name.startswith(_FUSIONS) else ""


class _Finder:
    """Comes last, for modules that nobody has found."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != self.package or not (found := remedy(name)):
            return None
        # Below this frame there is the search of all finders, and below that who wants to import, or only to know.
        if sys._getframe(2).f_code.co_name == "find_spec":
            return None
        raise ModuleNotFoundError(f"No module named '{fullname}': {found}", name=fullname)


def install(package: str) -> None:
    """Let errors of imports below a package say what to do."""
    if not any(isinstance(finder, _Finder) and finder.package == package for finder in sys.meta_path):
        sys.meta_path.append(_Finder(package))
