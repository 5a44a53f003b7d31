"""A language model in a folder, with its tokenizer: what `chat` and `generate` speak with."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from sardonyx import errors
from sardonyx.cli.failure import CommandError, UsageError

if TYPE_CHECKING:
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.models.folders.model_files import ModelFiles
    from sardonyx.models.generation.cache import Cache
    from sardonyx.models.generation.loop import Steps
    from sardonyx.models.generation.settings import Settings

Folder = Annotated[
    str,
    typer.Argument(metavar="DIR", help="A folder with a model and its tokenizer, or a hub's id.", show_default=False),
]
File = Annotated[
    str | None, typer.Option("--file", metavar="NAME", help="The ONNX file, where the folder has several.")
]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, metavar="N", help="The most tokens of an answer.")]
Temperature = Annotated[
    float | None,
    typer.Option(min=0, metavar="T", help="0: always the likeliest token; above: how even the chances are."),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", min=0, metavar="K", help="Draw from the K likeliest tokens; 0: all.")
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", min=0, max=1, metavar="P", help="Draw from the likeliest that reach this share."),
]
Seed = Annotated[int | None, typer.Option(min=0, metavar="N", help="Fixes what is drawn.")]

# What belongs to a tokenizer, of whatever kind.
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
# What transformers 5 calls a tokenizer that is all in `tokenizer.json`.
_BACKEND = "TokenizersBackend"
_UNFINISHED = "\ufffd"


@dataclass(frozen=True)
class Spoken:
    """An answer: its text and tokens, and how long it took; `cache` is for a prompt that goes on from here."""

    text: str
    tokens: int
    prompt_tokens: int
    read_tokens: int
    first_s: float
    total_s: float
    was_stopped: bool
    cache: Cache | None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens behind the first one, by the time from that one on; None for fewer than two."""
        seconds = self.total_s - self.first_s
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0 else None

    @property
    def line(self) -> str:
        """The numbers for a reader."""
        rate = self.tokens_per_second
        parts = [f"{self.tokens} tokens", f"first after {self.first_s * 1e3:.0f} ms"]
        if rate is not None:
            parts.append(f"then {rate:.1f} a second")
        parts.append(f"prompt {self.prompt_tokens} tokens, of which {self.read_tokens} were read")
        if (peak := peak_memory()) is not None:
            parts.append(f"{peak / 2**20:.0f} MiB of memory at most")
        return ", ".join(parts)


@dataclass(frozen=True)
class Speaker:
    """A model as steps, its tokenizer, and the settings that it comes with.

    Of a model with an encoder, `encode` makes the steps over the tokens of a text, which its decoder answers from
    `start` on.
    """

    steps: Steps | None
    tokenizer: Any
    settings: Settings
    where: str
    encode: Callable[[list[int]], Steps] | None = None
    start: int | None = None

    def answer(
        self,
        ids: list[int],
        settings: Settings,
        *,
        show: Any = None,
        cache: Cache | None = None,
        seed: int | None = None,
        keeps_special: bool = False,
    ) -> Spoken:
        """Go on from tokens, or answer them; `show` gets the text piece by piece. Ctrl-C ends it between two tokens.

        `errors.InvalidArgument` for no tokens, or for more than the model has positions.
        """
        from sardonyx.models.generation.loop import generate

        voice = _Voice(self.tokenizer, show, keeps_special)
        known = 0 if cache is None else min(cache.matching(np.array([ids], np.int64)), max(len(ids) - 1, 0))
        start = time.perf_counter()
        steps, begun = self._steps(ids)
        settings = _fitting(steps, settings, len(begun))
        with _stopping() as stopped:
            stops = [lambda tokens, scores: np.full(len(tokens), bool(stopped))]
            found = generate(
                steps,
                np.array([begun], np.int64),
                settings,
                attention_mask=np.ones((1, len(begun)), np.int64),
                stopping=stops,
                streamer=voice,
                cache=cache,
                tokenizer=self.tokenizer if settings.stop_strings else None,
                seed=seed,
            )
        total = time.perf_counter() - start
        new = found.sequences.shape[1] - len(begun)
        first = (voice.first or start + total) - start
        return Spoken(voice.text, new, len(ids), len(ids) - known, first, total, bool(stopped), found.cache)

    def _steps(self, ids: list[int]) -> tuple[Steps, list[int]]:
        """The steps that an answer is made of, and the tokens that they begin with."""
        if self.encode is not None and self.start is not None:
            return self.encode(ids), [self.start]
        assert self.steps is not None
        return self.steps, ids


def _fitting(steps: Steps, settings: Settings, prompt: int) -> Settings:
    """Settings with as many new tokens as the model has positions for."""
    positions = steps.positions
    if positions is None or settings.max_new_tokens is None:
        return settings
    left = positions + 1 - prompt
    if left < 1:
        raise errors.InvalidArgument(
            f"The text has {prompt} tokens, and the model {positions} positions: there is no room for an answer"
        )
    return settings.with_changes(max_new_tokens=min(settings.max_new_tokens, left))


class _Voice:
    """A streamer that shows text as its characters are whole, and knows when the first token came."""

    def __init__(self, tokenizer: Any, show: Any, keeps_special: bool) -> None:
        self._tokenizer = tokenizer
        self._show = show
        self._skips = not keeps_special
        self._tokens: list[int] | None = None
        self._begin = 0  # the first token whose text may still change
        self._shown = 0  # characters of the text of those tokens
        self.text = ""
        self.first: float | None = None

    def put(self, value: Any) -> None:
        if self._tokens is None:
            self._tokens = []  # the prompt
            return
        if self.first is None:
            self.first = time.perf_counter()
        self._tokens += np.asarray(value).reshape(-1).tolist()
        self._say(whole=False)

    def end(self) -> None:
        self._say(whole=True)

    def _say(self, whole: bool) -> None:
        assert self._tokens is not None
        text = self._tokenizer.decode(self._tokens[self._begin :], skip_special_tokens=self._skips)
        if not whole and text.endswith(_UNFINISHED):
            return
        piece = text[self._shown :]
        self._shown = len(text)
        if text.endswith("\n"):
            self._begin, self._shown = len(self._tokens), 0
        if piece:
            self.text += piece
            if self._show is not None:
                self._show(piece)


def open_speaker(folder: str, file_name: str | None, options: SessionOptions) -> Speaker:
    """The model and the tokenizer of a folder, or of a hub's id.

    `errors.NotFound` for a package or a tokenizer that is not there, what `from_pretrained` raises for files that are
    not.
    """
    from sardonyx.models.folders.configs import load_config
    from sardonyx.models.folders.decoders import decoder_name
    from sardonyx.models.folders.opening import open_files
    from sardonyx.models.generation.decoder import Decoder
    from sardonyx.models.generation.stopping import require_tokenizer

    files, named = open_files(folder)
    tokenizer = open_tokenizer(files)
    config = load_config(files)
    if getattr(config, "is_encoder_decoder", False):
        return _open_encoder_decoder(files, config, tokenizer, folder, file_name, options)
    path = files.path(decoder_name(files, file_name or named))
    steps = Decoder.open(path, config, session_options=options)
    require_tokenizer(tokenizer, steps.vocabulary)
    return Speaker(steps, tokenizer, model_settings(files, config), files.where)


def _open_encoder_decoder(
    files: ModelFiles, config: Any, tokenizer: Any, folder: str, file_name: str | None, options: SessionOptions
) -> Speaker:
    from sardonyx.models import ORTModelForSeq2SeqLM
    from sardonyx.models.generation.stopping import require_tokenizer

    said: dict[str, Any] = {} if file_name is None else {"decoder_file_name": file_name}
    model = ORTModelForSeq2SeqLM.from_pretrained(folder, session_options=options, **said)
    reads = model.parts["encoder"].inputs
    if "input_ids" not in reads:
        raise CommandError(f"{files.where}: the model's encoder reads no text, but {', '.join(reads)}")
    generation = model.generation_config
    start = generation.decoder_start_token_id
    start = generation.bos_token_id if start is None else start
    if start is None:
        raise errors.Fail(
            f"No file of {files.where} names the token that the decoder begins with: "
            "decoder_start_token_id in generation_config.json or config.json does"
        )
    require_tokenizer(tokenizer, model.decoder.vocabulary)

    def encode(ids: list[int]) -> Steps:
        given = np.array([ids], np.int64)
        mask = np.ones_like(given)
        return model.steps_over(model.encoder(input_ids=given, attention_mask=mask).last_hidden_state, mask)

    return Speaker(None, tokenizer, model_settings(files, config), files.where, encode, int(np.ravel(start)[0]))


def chosen_languages(speaker: Speaker, source: str | None, target: str | None) -> Speaker:
    """The speaker for a text of one language and an answer in another; UsageError for those that it does not know."""
    changes: dict[str, Any] = {}
    for option, language in (("--source-language", source), ("--target-language", target)):
        if language is None:
            continue
        if not hasattr(speaker.tokenizer, "src_lang"):
            raise UsageError(f"{option}: the tokenizer of {speaker.where} knows no languages")
        token = _language_token(speaker.tokenizer, language)
        if token is None:
            raise UsageError(f"{option} {language}: the tokenizer of {speaker.where} does not know this language")
        changes[option] = token
    if source is not None:
        speaker.tokenizer.src_lang = source
    if target is None:
        return speaker
    settings = speaker.settings.with_changes(forced_bos_token_id=changes["--target-language"])
    return dataclasses.replace(speaker, settings=settings)


def _language_token(tokenizer: Any, language: str) -> int | None:
    """The token that stands for a language, by whichever way a tokenizer has for it."""
    ids = getattr(tokenizer, "lang_code_to_id", None)
    if ids is not None and language in ids:
        return int(ids[language])
    words = getattr(tokenizer, "lang_code_to_token", {})
    found = tokenizer.convert_tokens_to_ids(words.get(language, language))
    return None if found is None or found == tokenizer.unk_token_id else int(found)


def open_tokenizer(files: ModelFiles) -> Any:
    """The tokenizer among a model's files; `errors.NotFound` for none, `errors.Fail` for one that cannot be read."""
    from sardonyx.models.folders.layout import listed
    from sardonyx.models.requirements import require

    if not any(files.find_name(name) for name in _TOKENIZERS):
        raise errors.NotFound(
            f"There is no tokenizer in {files.where}: expected {_TOKENIZERS[0]} or files of another kind, as "
            f"save_pretrained of a tokenizer writes them. Its files are {listed(files.names)}"
        )
    transformers = require("transformers", "Reading a tokenizer")
    folder = files.folder() / Path(files.find_name(_TOKENIZERS[0]) or files.find_name(_TOKENIZERS[1]) or "").parent
    try:
        if files.find_name(_TOKENIZERS[1]) or files.find_name("config.json"):
            reader, changes = _reader(files, transformers)
            return reader.from_pretrained(folder, **changes)
        return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / _TOKENIZERS[0]))
    except Exception as error:  # whatever tokenizers raise: there is no class of their errors
        raise errors.Fail(f"The tokenizer in {files.where} cannot be read: {error}") from error


def _reader(files: ModelFiles, transformers: Any) -> tuple[Any, dict[str, Any]]:
    """The class of transformers that reads a tokenizer, and the arguments that it needs.

    transformers 4 does not read what 5 writes: a class `TokenizersBackend`, which it calls `PreTrainedTokenizerFast`,
    and further special tokens as a list.
    """
    name = files.find_name(_TOKENIZERS[1])
    said: Any = files.read_json(name) if name is not None else {}
    kind, further = said.get("tokenizer_class"), said.get("extra_special_tokens")
    changes: dict[str, Any] = {}
    reader = transformers.AutoTokenizer
    if hasattr(transformers, _BACKEND):
        return reader, changes
    if isinstance(further, list):
        changes = {"additional_special_tokens": further, "extra_special_tokens": {}}
    if kind == _BACKEND and files.find_name(_TOKENIZERS[0]):
        reader = type(_BACKEND, (transformers.PreTrainedTokenizerFast,), {})  # one of another name is told in a warning
    return reader, changes


def model_settings(files: ModelFiles, config: Any) -> Settings:
    """The settings of a model's generation config: the folder's, else what its other files say."""
    from sardonyx.models.folders.generation_defaults import generation_defaults
    from sardonyx.models.generation.settings import Settings

    said, name = generation_defaults(files) or ({}, "")
    known = {key: value for key, value in said.items() if key not in ("max_length", "min_length") and value is not None}
    if not known.get("do_sample") and known.get("temperature") == 0:
        del known["temperature"]  # which says nothing there, and is none where tokens are drawn
    for key in ("eos_token_id", "pad_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        if known.get(key) is None and getattr(config, key, None) is not None:
            known[key] = getattr(config, key)
    try:
        settings = Settings.of(known, num_beams=1, num_return_sequences=1)
    except errors.InvalidArgument as error:
        raise errors.Fail(f"{name} of {files.where} is no generation config: {error.message}") from error
    return dataclasses.replace(settings, unsupported=())


def chosen_settings(
    speaker: Speaker, new_tokens: int, temperature: float | None, top_k: int | None, top_p: float | None
) -> Settings:
    """The model's settings with what the command line says; UsageError for what does not go together."""
    changes: dict[str, Any] = {"max_new_tokens": new_tokens}
    if temperature == 0:
        if top_k is not None or top_p is not None:
            raise UsageError("--temperature 0 takes the likeliest token: --top-k and --top-p are for others")
        changes["do_sample"] = False
    elif temperature is not None or top_k is not None or top_p is not None:
        changes["do_sample"] = True
        changes |= {"temperature": temperature} if temperature is not None else {}
        changes |= {"top_k": top_k} if top_k is not None else {}
        changes |= {"top_p": top_p} if top_p is not None else {}
    return speaker.settings.with_changes(**changes)


def show(piece: str) -> None:
    """Write a piece of text at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def peak_memory() -> int | None:
    """The most bytes that the process has had in memory; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """A list that Ctrl-C puts something into; a second Ctrl-C is a KeyboardInterrupt, as ever."""
    stopped: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        if stopped:
            signal.default_int_handler(number, frame)
        stopped.append(number)

    try:
        signal.signal(signal.SIGINT, stop)
    except ValueError:  # not in the main thread, which alone may
        yield stopped
        return
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
