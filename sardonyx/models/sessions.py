"""How the sessions of a model are made: its providers, their options, and the options of the session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx import errors
from sardonyx.models.part import LaterPart, Part

if TYPE_CHECKING:
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.api.session import InferenceSession

CPU_PROVIDER = "CPUExecutionProvider"


class SessionSettings:
    """Providers by priority, a dictionary of options for each, and the options that every session begins with.

    `providers` wins over `provider`; `provider_options` is a dictionary for the first provider, or one for each.
    `errors.InvalidArgument` for a provider that is not there, and for options that are not as many.
    """

    def __init__(
        self,
        provider: str | None = None,
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        session_options: SessionOptions | None = None,
        use_io_binding: bool | None = None,
    ) -> None:
        self.providers = _checked(providers if providers is not None else [provider or CPU_PROVIDER])
        self.provider_options = _for_each(self.providers, provider_options)
        if session_options is not None and not hasattr(session_options, "add_session_config_entry"):
            raise errors.InvalidArgument(f"session_options is a SessionOptions, and not {session_options!r:.60}")
        self.session_options = session_options
        self.use_io_binding = bool(use_io_binding)

    def open(self, path: str | os.PathLike[str], entries: Mapping[str, str] | None = None) -> Part:
        """A part of the model from its file; `entries` are further session config entries for it."""
        options = self.session_options
        if entries:
            options = self.options(entries)
        return Part(self._session(path, options), self.use_io_binding)

    def open_later(self, path: str | os.PathLike[str]) -> Part:
        """The same, whose session is opened when it is needed, if the file says what its inputs and outputs are.

        A file that cannot be loaded is an error at once.
        """
        from sardonyx.api.engines import engine_source

        options = self.options({})
        name = os.fspath(path)
        arguments = None
        if engine_source.find(name, options) is None:
            from sardonyx.api.building.declared_arguments import declared_arguments

            arguments = declared_arguments(name, options)
        if arguments is None:
            return self.open(path)
        return LaterPart(Path(name), arguments, lambda: self._session(name, options), self.use_io_binding)

    def _session(self, path: str | os.PathLike[str], options: SessionOptions | None) -> InferenceSession:
        from sardonyx.api.session import InferenceSession

        return InferenceSession(
            os.fspath(path), options, providers=self.providers, provider_options=self.provider_options
        )

    def options(self, entries: Mapping[str, str]) -> SessionOptions:
        """New session options with these config entries added; those of the caller stay as they are."""
        from sardonyx.api.options.session_options import SessionOptions

        options = SessionOptions() if self.session_options is None else self.session_options._copy()
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        return options


def _checked(providers: Sequence[str]) -> list[str]:
    from sardonyx.api.options.environment import get_available_providers

    available = get_available_providers()
    if isinstance(providers, str) or not providers:
        raise errors.InvalidArgument(f"providers is a list of names, such as {available}, and not {providers!r}")
    for name in providers:
        if name not in available:
            raise errors.InvalidArgument(f"There is no provider {name!r} here; available are {', '.join(available)}")
    return list(providers)


def _for_each(
    providers: list[str], options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None
) -> list[dict[Any, Any]]:
    if options is None:
        return [{} for _ in providers]
    if isinstance(options, Mapping):
        return [dict(options), *({} for _ in providers[1:])]
    if not isinstance(options, list | tuple) or not all(isinstance(one, Mapping) for one in options):
        raise errors.InvalidArgument(
            f"provider_options is a dictionary, or a list of one for each provider, and not {options!r:.60}"
        )
    if len(options) != len(providers):
        raise errors.InvalidArgument(
            f"provider_options has {len(options)} dictionaries for {len(providers)} providers: give one for each"
        )
    return [dict(one) for one in options]
