"""What the files of a model say of generation: generation_config.json, or what onnxruntime-genai wrote in its place."""

from __future__ import annotations

from typing import Any

from sardonyx import errors
from sardonyx.models.folders.model_files import GENAI_CONFIG, ModelFiles

GENERATION_CONFIG = "generation_config.json"
# What ends, begins and fills a text: onnxruntime-genai says it of the model, not of the search.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def generation_defaults(files: ModelFiles) -> tuple[dict[str, Any], str] | None:
    """Settings by transformers' names, and the file that they are of; None where no file speaks of generation.

    `errors.Fail` for a file that cannot be read, or is of another form.
    """
    name = files.find_name(GENERATION_CONFIG)
    if name is not None:
        return files.read_json(name), name
    if files.genai_config is None:
        return None
    search = files.genai_config.get("search", {})
    model = files.genai_config.get("model", {})
    for part, what in ((search, "search"), (model, "model")):
        if not isinstance(part, dict):
            raise errors.Fail(f"{what} in {GENAI_CONFIG} of {files.where} is no JSON object, but {part!r}")
    tokens = {key: model[key] for key in _TOKENS if model.get(key) is not None}
    said = {key: value for key, value in search.items() if value is not None}
    if said.get("num_beams", 1) == 1:
        said.pop("early_stopping", None)  # of beams, of which transformers warns where there is one
    return tokens | said, GENAI_CONFIG
