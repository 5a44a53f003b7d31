"""`sardonyx chat`: talk with a model; what it has read of the conversation is not read again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx import errors
from sardonyx.cli.arguments import session_options
from sardonyx.cli.failure import CommandError, note
from sardonyx.cli.language import (
    File,
    Folder,
    NewTokens,
    Seed,
    Speaker,
    Temperature,
    TopK,
    TopP,
    chosen_settings,
    open_speaker,
    show,
)
from sardonyx.cli.options import Entries, Level, Threads

if TYPE_CHECKING:
    from sardonyx.models.generation.cache import Cache

EXAMPLES = (
    "sardonyx chat my-model",
    'sardonyx chat my-model --system "Answer in one sentence." --temperature 0.7 --top-p 0.9 --seed 1',
)

_PROMPT = "> "
_CLEAR = "/clear"
_LEAVE = ("/exit", "/quit")


def chat(
    folder: Folder,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told before the conversation.")
    ] = None,
    new_tokens: NewTokens = 512,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    file: File = None,
    threads: Threads = 0,
    level: Level = "all",
    entries: Entries = None,
) -> None:
    """Talk with a model. Ctrl-C stops an answer; /clear begins anew; /exit, or the end of the input, ends."""
    speaker = open_speaker(folder, file, session_options(threads, level, entries or []))
    if speaker.encode is not None:
        raise CommandError(
            f"{speaker.where}: the model has an encoder, which turns one text into another and holds no conversation; "
            "sardonyx generate does that"
        )
    if not getattr(speaker.tokenizer, "chat_template", None):
        raise CommandError(
            f"{speaker.where}: the tokenizer has no chat template, by which a conversation becomes a text; "
            "sardonyx generate continues a text without one"
        )
    settings = chosen_settings(speaker, new_tokens, temperature, top_k, top_p)
    beginning = [{"role": "system", "content": system}] if system is not None else []
    messages = list(beginning)
    cache: Cache | None = None
    if sys.stdin.isatty():
        note("Ctrl-C stops an answer, /clear begins anew, /exit ends")
    while (line := _asked()) is not None:
        if not line.strip():
            continue
        if line.strip() in _LEAVE:
            return
        if line.strip() == _CLEAR:
            messages, cache = list(beginning), None
            continue
        said = [*messages, {"role": "user", "content": line}]
        try:
            answer = speaker.answer(_ids(speaker, said), settings, show=show, cache=cache, seed=seed)
        except errors.InvalidArgument as error:
            raise CommandError(f"{error.message}. {_CLEAR} begins a new conversation") from error
        cache = answer.cache
        messages = [*said, {"role": "assistant", "content": answer.text}]
        show("\n")
        note(f"{'stopped, ' if answer.was_stopped else ''}{answer.line}")


def _asked() -> str | None:
    """The next line of the user; None at the end of the input."""
    try:
        return input(_PROMPT if sys.stdin.isatty() else "")
    except EOFError:
        if sys.stdin.isatty():
            show("\n")
        return None


def _ids(speaker: Speaker, messages: list[dict[str, str]]) -> list[int]:
    """The tokens of a conversation up to where the model answers; CommandError where the template refuses it."""
    try:
        found: Any = speaker.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    except Exception as error:  # templates raise what their engine does, and what they like
        raise CommandError(f"The chat template of {speaker.where} does not take the conversation: {error}") from error
    # transformers 5 gives a dictionary where 4 gives the tokens.
    return list(found["input_ids"] if hasattr(found, "keys") else found)
