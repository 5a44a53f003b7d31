"""`sardonyx generate`: continue a text."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sardonyx.cli.arguments import session_options
from sardonyx.cli.failure import UsageError, note
from sardonyx.cli.language import (
    File,
    Folder,
    NewTokens,
    Seed,
    Temperature,
    TopK,
    TopP,
    chosen_languages,
    chosen_settings,
    open_speaker,
    peak_memory,
    show,
)
from sardonyx.cli.options import Entries, Json, Level, Threads
from sardonyx.cli.signals import INTERRUPTED

EXAMPLES = (
    'sardonyx generate my-model "Once upon a time" --max-new-tokens 100',
    "sardonyx generate my-model - --temperature 0 --json < prompt.txt",
)


def generate(
    folder: Folder,
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from the input.", show_default=False),
    ],
    new_tokens: NewTokens = 256,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Ends the answer where this text comes.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option("--source-language", metavar="CODE", help="The language of the text, to translate it.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option("--target-language", metavar="CODE", help="The language to translate to.")
    ] = None,
    file: File = None,
    threads: Threads = 0,
    level: Level = "all",
    entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Continue a text, or answer it with a model that has an encoder, token by token. Ctrl-C ends it."""
    speaker = open_speaker(folder, file, session_options(threads, level, entries or []))
    speaker = chosen_languages(speaker, source_language, target_language)
    settings = chosen_settings(speaker, new_tokens, temperature, top_k, top_p)
    if stop:
        if not all(stop):
            raise UsageError("--stop: expected a text that is not empty")
        settings = settings.with_changes(stop_strings=tuple(stop))
    text = sys.stdin.read() if prompt == "-" else prompt
    ids = list(speaker.tokenizer(text)["input_ids"])
    if not ids:
        raise UsageError("PROMPT has no tokens: expected a text of one or more")
    answer = speaker.answer(ids, settings, show=None if as_json else show, seed=seed)
    if as_json:
        report = {
            "prompt_tokens": answer.prompt_tokens,
            "tokens": answer.tokens,
            "text": answer.text,
            "seconds": {"first": answer.first_s, "total": answer.total_s},
            "tokens_per_second": answer.tokens_per_second,
            "peak_bytes": peak_memory(),
            "stopped": answer.was_stopped,
        }
        print(json.dumps(report))
    else:
        show("\n")
        note(answer.line)
    if answer.was_stopped:
        raise typer.Exit(INTERRUPTED)
