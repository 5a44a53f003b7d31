"""What sentence-transformers writes into a folder: the modules of an encoder, its prompts and its sizes.

A folder without `modules.json` (Optimum's, transformers.js's, FastEmbed's) is a transformer alone.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from sardonyx import errors
from sardonyx.models.folders.json_files import Section
from sardonyx.models.folders.model_files import ModelFiles
from sardonyx.models.sentences import pooling
from sardonyx.models.sentences.layers import Dense, Floats, Layer, LayerNorm, normalised, read_weights
from sardonyx.models.sentences.opening import read_config

# The config of the transformer; older versions named it by the architecture.
_TRANSFORMER_CONFIGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
_KNOWN = "Transformer, Pooling, Dense, LayerNorm, Normalize and Dropout"


@dataclass
class Layout:
    """An encoder as its folder describes it.

    `pooling` is None where the folder says nothing of it; `layers` come after the pooling.
    """

    pooling: pooling.Pooling | None = None
    layers: list[Layer] = field(default_factory=list)
    size: int | None = None  # of the vectors, where a layer changes it
    max_length: int | None = None
    query_length: int | None = None
    document_length: int | None = None
    lower_case: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    truncate_dim: int | None = None
    similarity: str = "cosine"


def read_layout(files: ModelFiles) -> Layout:
    """What the files of a model describe.

    `errors.NotImplemented` for modules that need more than an ONNX model and what is here, `errors.Fail` for files that
    are not whole.
    """
    layout = Layout()
    for kind, path in files.modules:
        _add(layout, files, kind, path)
    _read_transformer(layout, files)
    settings = read_config(files, "config_sentence_transformers.json")
    layout.prompts = settings.texts("prompts")
    layout.default_prompt_name = settings.text("default_prompt_name")
    layout.truncate_dim = settings.count("truncate_dim")
    layout.similarity = settings.text("similarity_fn_name") or "cosine"
    return layout


def _add(layout: Layout, files: ModelFiles, kind: str, path: str) -> None:
    if kind == "Transformer":
        return  # whose files are found by their names
    if kind == "Pooling":
        layout.pooling = pooling.of_config(_config(files, path))
    elif kind == "Dense":
        config = _config(files, path)
        if (config.text("module_input_name") or "sentence_embedding") != "sentence_embedding":
            raise errors.NotImplemented(f"The dense layer in {path} is not for vectors: {config['module_input_name']}")
        dense = Dense(_weights(files, path), config)
        layout.layers.append(dense)
        layout.size = dense.size
    elif kind == "LayerNorm":
        layout.layers.append(LayerNorm(_weights(files, path)))
    elif kind == "Normalize":
        layout.layers.append(normalised)
    elif kind != "Dropout":  # which does nothing outside of training
        raise errors.NotImplemented(f"modules.json of {files.where} has a module {kind!r:.60}; known here are {_KNOWN}")


def _config(files: ModelFiles, path: str) -> Section:
    name = posixpath.join(path, "config.json")
    if name not in files.names:
        raise errors.NoSuchFile(f"modules.json of {files.where} names the folder {path!r}, which has no config.json")
    return files.read_json(name)


def _weights(files: ModelFiles, path: str) -> dict[str, Floats]:
    for file in ("model.safetensors", "pytorch_model.bin"):
        if (name := posixpath.join(path, file)) in files.names:
            return read_weights(files.path(name))
    raise errors.NoSuchFile(f"{path} of {files.where} has no weights: neither model.safetensors nor pytorch_model.bin")


def _read_transformer(layout: Layout, files: ModelFiles) -> None:
    for name in _TRANSFORMER_CONFIGS:
        if config := read_config(files, name):
            break
    text = config.section("processing_kwargs").section("text")
    layout.max_length = text.limit("max_length") or config.limit("max_seq_length")
    layout.query_length = config.limit("query_length")
    layout.document_length = config.limit("document_length")
    layout.lower_case = config.flag("do_lower_case")
