"""`export_model`: a PyTorch model of transformers as ONNX files that Sardonyx, Optimum and ONNX Runtime load."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx import errors
from sardonyx.models.export import loading
from sardonyx.models.export.graphs import Graph
from sardonyx.models.folders import staging
from sardonyx.models.requirements import require

# Attention is one operator from this one on.
DEFAULT_OPSET = 23
_OPSETS = range(18, 24)


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    `files` are all of them; `differences` says for each ONNX file by how much it is from PyTorch at most, as a part of
    an output's largest number; it is empty where nothing was checked.
    """

    folder: Path
    task: str
    model_type: str
    dtype: str
    opset: int
    files: tuple[Path, ...]
    differences: dict[str, float] = field(default_factory=dict)

    @property
    def models(self) -> tuple[Path, ...]:
        """The ONNX files."""
        return tuple(path for path in self.files if path.suffix == ".onnx")


def export_model(
    model: Any,
    output_dir: str | os.PathLike[str],
    task: str | None = None,
    *,
    dtype: str | None = None,
    opset: int | None = None,
    check: bool = True,
    tolerance: float | None = None,
    progress: Callable[[str], None] | None = None,
    **hub: Any,
) -> Exported:
    """Write a model of transformers (or of its folder, or its id) as ONNX files into a folder.

    Files and names are Optimum's: `model.onnx`; for encoder-decoders `encoder_model.onnx`, `decoder_model.onnx` and
    `decoder_with_past_model.onnx`, whose weights are stored once. Decoders take and give their caches, in one graph for
    prompts and tokens. Beside them lie config.json, generation_config.json and the files of the tokenizer or processor.
    Batch and lengths are free.

    `task` is one of Optimum's names; that of the config's class if None. `dtype` is float32, float16 or bfloat16; if
    None, float32 for a folder or an id, and what a model in memory has. `hub` holds arguments of `from_pretrained`:
    `revision`, `cache_dir`, `token`, `local_files_only`, `trust_remote_code`, `subfolder`. Every file is run on sizes
    that were not traced, and compared with PyTorch, unless `check` is false; `tolerance` is the largest difference, as
    a part of an output's largest number.

    Raises `errors.NoSuchFile` and `errors.InvalidArgument` for what is no model, `errors.NotImplemented` with torch's
    reason for a model that cannot be exported, and `errors.Fail` with the numbers where a file differs from PyTorch,
    and for a folder that cannot be written. Files come into the folder when all of them are whole: after an error or
    Ctrl-C it is as it was.
    """
    opset = DEFAULT_OPSET if opset is None else opset
    if opset not in _OPSETS:
        raise errors.InvalidArgument(f"opset is {opset}; expected {_OPSETS[0]} to {_OPSETS[-1]}")
    require("onnxscript", "The export of a model")
    tell = progress or (lambda _: None)
    tell("loading the weights")
    loaded, task = loading.load(model, task, dtype, hub)
    from sardonyx.models.export import architectures

    folder = Path(output_dir)
    with staging.staged(folder) as stage, architectures.prepared(loaded):
        graphs = architectures.graphs(loaded, task)
        try:
            files, differences = _written(graphs, stage, opset, check, tolerance, tell)
        except (errors.Fail, errors.NotImplemented):
            if not any(graph.is_open for graph in graphs):
                raise
            # The tracer may keep a size free that the model's code has made choices by, as Swin's pads its windows.
            graphs = [graph.settled() for graph in graphs]
            files, differences = _written(graphs, stage, opset, check, tolerance, tell)
        files += loading.save_beside(model, loaded, stage, hub)
        # Weights come before the graphs that read them.
        weights_first = sorted(files, key=lambda path: path.suffix == ".onnx")
        places = dict(zip(weights_first, staging.publish(weights_first, stage, folder), strict=True))
        files = [places[path] for path in files]
    return Exported(
        folder,
        task,
        loaded.config.model_type,
        str(loaded.dtype).removeprefix("torch."),
        opset,
        tuple(files),
        differences,
    )


def _written(
    graphs: Sequence[Graph],
    folder: Path,
    opset: int,
    check: bool,
    tolerance: float | None,
    tell: Callable[[str], None],
) -> tuple[list[Path], dict[str, float]]:
    """The files of graphs, and how far they are from PyTorch."""
    from sardonyx.models.export import checking, dynamo, weights

    made = {}
    for graph in graphs:
        tell(f"tracing {graph.file}")
        made[graph.file] = dynamo.to_onnx(graph, opset)
    tell("writing")
    files = weights.write(made, folder)
    differences = {}
    for graph in graphs if check else ():
        tell(f"comparing {graph.file} with PyTorch")
        differences[graph.file] = checking.check(folder / graph.file, graph, tolerance)
    return files, differences
