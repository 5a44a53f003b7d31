"""What sentence-transformers writes into a folder: the modules of an encoder, its prompts and its sizes.

A folder without `modules.json` (Optimum's, transformers.js's, FastEmbed's) is a transformer alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sardonyx import errors
from sardonyx.models.sentences import pooling
from sardonyx.models.sentences.json_file import read_json, read_object
from sardonyx.models.sentences.layers import Dense, Layer, LayerNorm, normalised

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

    `transformer` is the folder of the model and its tokenizer; `pooling` is None where the folder says nothing of it;
    `layers` come after the pooling.
    """

    transformer: Path
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


def read_layout(folder: Path) -> Layout:
    """What a folder describes.

    `errors.NotImplemented` for modules that need more than an ONNX model and what is here, `errors.Fail` for files that
    are not whole.
    """
    layout = Layout(folder)
    modules = read_json(folder / "modules.json", [])
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise errors.Fail(f"{folder / 'modules.json'} is no list of modules; get the file again")
    for module in modules:
        _add(layout, folder, str(module.get("type", "")).rpartition(".")[2], str(module.get("path", "")))
    _read_transformer(layout)
    settings = read_object(folder / "config_sentence_transformers.json")
    layout.prompts = {name: text or "" for name, text in (settings.get("prompts") or {}).items()}
    layout.default_prompt_name = settings.get("default_prompt_name")
    layout.truncate_dim = settings.get("truncate_dim")
    layout.similarity = settings.get("similarity_fn_name") or "cosine"
    return layout


def _add(layout: Layout, folder: Path, kind: str, path: str) -> None:
    inside = folder / path
    if not inside.resolve().is_relative_to(folder.resolve()):
        raise errors.Fail(f"modules.json names the folder {path!r}, which is not below {folder}")
    if kind == "Transformer":
        layout.transformer = inside
    elif kind == "Pooling":
        layout.pooling = pooling.of_config(read_object(inside / "config.json"))
    elif kind == "Dense":
        config = read_object(inside / "config.json")
        if config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
            raise errors.NotImplemented(
                f"The dense layer in {inside} is not for vectors: {config['module_input_name']}"
            )
        dense = Dense(inside, config)
        layout.layers.append(dense)
        layout.size = dense.size
    elif kind == "LayerNorm":
        layout.layers.append(LayerNorm(inside))
    elif kind == "Normalize":
        layout.layers.append(normalised)
    elif kind != "Dropout":  # which does nothing outside of training
        raise errors.NotImplemented(f"modules.json in {folder} has a module {kind!r}; those known here are {_KNOWN}")


def _read_transformer(layout: Layout) -> None:
    for name in _TRANSFORMER_CONFIGS:
        if config := read_object(layout.transformer / name):
            break
    text = (config.get("processing_kwargs") or {}).get("text") or {}
    layout.max_length = text.get("max_length", config.get("max_seq_length"))
    layout.query_length = config.get("query_length")
    layout.document_length = config.get("document_length")
    layout.lower_case = bool(config.get("do_lower_case", False))
