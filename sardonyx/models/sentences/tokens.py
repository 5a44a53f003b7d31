"""Texts to token ids, by the package tokenizers: what `tokenizer.json` says, cut to a length, not padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.folders.json_files import Section
from sardonyx.models.folders.model_files import ModelFiles
from sardonyx.models.requirements import installed, require
from sardonyx.models.sentences.opening import read_config

# A text, or a pair of texts.
Text = str | tuple[str, str]

# Models whose positions begin behind the padding token's id: they have fewer than their tables have rows.
_SHIFTED_POSITIONS = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl", "xmod", "ibert"})
_MOST_TOKENS = 1 << 31


@dataclass
class Tokens:
    """The tokens of some texts: ids and types for each text, not padded."""

    ids: list[list[int]]
    types: list[list[int]] | None

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.ids]


class TextTokenizer:
    """A model's tokenizer. `max_length` is the number of tokens that texts are cut to, or None.

    `on_left` says whether padding stands before the tokens; `pad_id` is what it consists of. `model_config` is what
    ``config.json`` says of the model.
    """

    def __init__(self, files: ModelFiles, max_length: int | None = None, lower_case: bool = False) -> None:
        self._source = _tokenizer(files)
        config = read_config(files, "tokenizer_config.json")
        model = self.model_config = read_config(files, "config.json")
        if lower_case:
            _add_lower_case(self._source)
        padding = self._source.padding or {}
        truncation = self._source.truncation or {}
        self.pad_id = _pad_id(self._source, config, model, padding)
        self.on_left = _side(config, "padding_side", padding) == "left"
        self._side = _side(config, "truncation_side", truncation)
        self._source.no_padding()
        self._source.no_truncation()
        self._special = {
            id_ for id_, token in self._source.get_added_tokens_decoder().items() if getattr(token, "special", False)
        }
        self._cut: dict[int, Any] = {}
        asked = config.limit("model_max_length") if max_length is None else max_length
        self.max_length = min((one for one in (asked, _positions(model)) if one is not None), default=None)

    def encode(self, texts: Sequence[Text], max_length: int | None = None, types: bool = False) -> Tokens:
        """The tokens of texts or pairs, cut to `max_length` or to the tokenizer's; `types` are asked for separately."""
        tokenizer = self._of_length(max_length or self.max_length)
        try:
            encoded = tokenizer.encode_batch_fast(texts)
        except (TypeError, UnicodeError):  # the package says so of half a character that Python's texts may have
            raise _unspeakable(texts) from None
        return Tokens([one.ids for one in encoded], [one.type_ids for one in encoded] if types else None)

    def prompt_length(self, prompt: str, max_length: int | None = None) -> int:
        """How many tokens a prompt is at the start of a text: without a special token that ends it."""
        ids = self.encode([prompt], max_length).ids[0]
        return len(ids) - 1 if ids and ids[-1] in self._special else len(ids)

    def _of_length(self, length: int | None) -> Any:
        """A tokenizer that cuts to a length. Each is made once and never changed: threads may share it."""
        if length is None:
            return self._source
        if length not in self._cut:
            tokenizer = type(self._source).from_str(self._source.to_str())
            tokenizer.enable_truncation(length, direction=self._side)
            self._cut[length] = tokenizer
        return self._cut[length]


def padded(rows: Sequence[Sequence[int]], width: int, value: int, on_left: bool) -> np.ndarray[Any, Any]:
    """Rows of numbers as an int64 array of `width` columns, filled up with a value."""
    array = np.full((len(rows), width), value, np.int64)
    for at, row in enumerate(rows):
        if row:
            array[at, -len(row) if on_left else 0 : None if on_left else len(row)] = row
    return array


def _tokenizer(files: ModelFiles) -> Any:
    tokenizers = require("tokenizers", f"Reading the tokenizer of {files.where}")
    name = files.find_name("tokenizer.json")
    if name is not None:
        path = files.path(name)
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises Exception itself
            raise errors.Fail(f"{path} is no whole tokenizer ({error}); get the file again") from None
    if not installed("transformers"):
        raise errors.NoSuchFile(
            f"There is no tokenizer.json in {files.where}. transformers makes one of older files: with it installed, "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    folder = files.folder() / PurePosixPath(files.find_name("config.json") or "").parent
    try:
        return require("transformers", "A tokenizer").AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # of many classes, as each tokenizer reads its own files
        raise errors.NoSuchFile(
            f"There is no tokenizer.json in {files.where}, and transformers makes no fast tokenizer of what is there: "
            f"{error}"
        ) from None


def _add_lower_case(tokenizer: Any) -> None:
    normalizers = require("tokenizers.normalizers", "Lower case")
    before = tokenizer.normalizer
    lower = normalizers.Lowercase()
    tokenizer.normalizer = lower if before is None else normalizers.Sequence([lower, before])


def _side(config: Section, name: str, said: dict[str, Any]) -> str:
    side = config.text(name) or str(said.get("direction", "right"))
    if side not in ("left", "right"):
        raise errors.Fail(f"{name} of {config.where} is {side!r:.60}; expected 'left' or 'right'")
    return side


def _pad_id(tokenizer: Any, config: Section, model: Section, padding: dict[str, Any]) -> int:
    token = config.get("pad_token")
    content = config.section("pad_token").text("content") if isinstance(token, dict) else config.text("pad_token")
    found = tokenizer.token_to_id(content) if content else None
    if found is None:
        found = padding.get("pad_id", model.get("pad_token_id"))
    return found if isinstance(found, int) and 0 <= found < _MOST_TOKENS else 0


def _positions(model: Section) -> int | None:
    count = model.limit("max_position_embeddings")
    if count is not None and (model.text("model_type") or "") in _SHIFTED_POSITIONS:
        return max(count - (model.whole("pad_token_id") or 0) - 1, 1)
    return count


def _unspeakable(texts: Sequence[Text]) -> errors.InvalidArgument:
    """The error for the first text that is none in Unicode."""
    for at, text in enumerate(texts):
        try:
            "".join(text).encode()
        except UnicodeEncodeError as error:
            return errors.InvalidArgument(f"The text {at} of a batch cannot be written in Unicode: {error}")
    return errors.InvalidArgument("The tokenizer does not take these texts")
