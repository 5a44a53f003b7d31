"""How many fused operators the optimiser of saved models makes, beside onnxruntime's.

    python -m benchmarks.fusion_counts [--zoo DIR] [--models bert-base,…] [--exporter torchscript|dynamo] [--json FILE]

Both optimisers get the same file, in a process each. `attention` counts Attention and MultiHeadAttention, `gelu` every
form of it, `norms` every LayerNormalization, also that in `embeddings` (EmbedLayerNormalization) and in `skip`
(SkipLayerNormalization, with the residual). The zoo's transformers come from torch's older exporter; with `--exporter
dynamo` they are exported again by the newer one, into a temporary folder.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.zoo import registry, store

# The model type that each is optimised as, and its heads and width.
KINDS: Mapping[str, tuple[str, int, int]] = {
    "bert-base": ("bert", 12, 768),
    "distilbert": ("bert", 12, 768),
    "minilm-l6": ("bert", 12, 384),
    "gpt2-prefill": ("gpt2", 12, 768),
    "gpt2-decode": ("gpt2", 12, 768),
    "vit-base": ("vit", 12, 768),
    "whisper-small-encoder": ("bart", 12, 768),
    "whisper-small-decoder-step": ("bart", 12, 768),
}
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "embeddings": ("EmbedLayerNormalization",),
    "attention": ("Attention", "MultiHeadAttention"),
    "norms": ("EmbedLayerNormalization", "LayerNormalization", "SkipLayerNormalization"),
    "skip": ("SkipLayerNormalization",),
    "gelu": ("Gelu", "BiasGelu", "FastGelu"),
}
Counts = dict[str, int]


def of_onnxruntime(path: str, kind: str, heads: int, width: int) -> Counts:
    """The operators of a model after onnxruntime's optimiser of its type."""
    from onnxruntime.transformers.optimizer import optimize_model

    optimized = optimize_model(path, kind, num_heads=heads, hidden_size=width)
    return dict(collections.Counter(node.op_type for node in optimized.nodes()))


def of_sardonyx(path: str, kind: str, heads: int, width: int) -> Counts:
    """The same after the rules of this project."""
    from sardonyx.graph.load import load_model
    from sardonyx.passes.pipeline import fuse

    model = load_model(path).model
    fuse(model)
    return dict(collections.Counter(node.op_type for node in model.graph))


OPTIMIZERS = {"onnxruntime": of_onnxruntime, "sardonyx": of_sardonyx}


def count(optimizer: str, path: Path, kind: tuple[str, int, int]) -> Counts:
    """The operators that an optimiser leaves, counted in a process of its own, which gives its memory back."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(OPTIMIZERS[optimizer], (str(path), *kind))


def by_column(counts: Mapping[str, int]) -> Counts:
    return {column: sum(counts.get(name, 0) for name in names) for column, names in COLUMNS.items()}


def exported(name: str, folder: Path) -> Path:
    """The file of a zoo model as the newer exporter writes it."""
    from benchmarks.zoo import export

    model = replace(registry.get(name), maker="dynamo", opset=18)
    path = folder / name / "model.onnx"
    path.parent.mkdir()
    export.export(model, registry.torch_module(model), path)
    return path


def line(name: str, optimizer: str, counts: Mapping[str, int]) -> str:
    return f"{name:28}{optimizer:13}" + "".join(f"{counts[column]:12}" for column in COLUMNS)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, default=store.default_folder())
    parser.add_argument("--models", default=",".join(KINDS))
    parser.add_argument("--exporter", choices=("torchscript", "dynamo"), default="torchscript")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rows = []
    print(f"{'model':28}{'optimiser':13}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            dynamo = given.exporter == "dynamo"
            path = exported(name, Path(folder)) if dynamo else store.ensure(name, given.zoo) / "model.onnx"
            for optimizer in OPTIMIZERS:
                counts = by_column(count(optimizer, path, KINDS[name]))
                print(line(name, optimizer, counts), flush=True)
                rows.append({"model": name, "exporter": given.exporter, "optimizer": optimizer, **counts})
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
