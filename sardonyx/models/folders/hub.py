"""Repositories of the Hugging Face hub: what is in them, and the files of them that are needed, by huggingface_hub."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sardonyx import errors
from sardonyx.log import Logger
from sardonyx.models.folders.model_files import ModelFiles
from sardonyx.models.folders.wholeness import unfinished_note
from sardonyx.models.requirements import require
from sardonyx.runtime.files.opening import read_file

_SECONDS = 10  # to wait for the list of a repository's files
_LOG = Logger("models")

T = TypeVar("T")


def open_repository(
    repository: str,
    *,
    revision: str | None = None,
    subfolder: str = "",
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
    token: bool | str | None = None,
) -> ModelFiles:
    """The files of a repository by its id; what is asked for is fetched into the cache.

    With `local_files_only`, in huggingface_hub's offline mode, and where the hub cannot be reached, the files are those
    that the cache has. `errors.NoSuchFile` where there is no such repository or revision, or nothing of it in the
    cache; `errors.Fail` where the hub refuses, or fails.
    """
    hub = require("huggingface_hub", f"Finding the model {repository}")
    constants = require("huggingface_hub.constants", f"Finding the model {repository}")
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    if local_files_only or constants.HF_HUB_OFFLINE:
        reason = "local_files_only is set" if local_files_only else "HF_HUB_OFFLINE is set"
        return _cached(repository, revision, subfolder, cache, reason)
    try:
        info = _told(
            repository,
            revision,
            lambda: hub.HfApi().repo_info(repository, revision=revision, timeout=_SECONDS, token=token),
        )
    except _UnreachableError as error:
        files = _cached(repository, revision, subfolder, cache, str(error))
        _LOG.warning(f"{error}: the model {repository} is taken from the cache as it is", "hub")
        return files
    root = _repository_folder(repository, cache) / "snapshots" / str(info.sha)

    def fetch(names: Sequence[str]) -> Path:
        wanted = [name for name in names if force_download or not (root / name).exists()]
        if wanted:
            try:
                found = _told(
                    repository,
                    revision,
                    lambda: hub.snapshot_download(
                        repository,
                        revision=revision,
                        cache_dir=cache_dir,
                        force_download=force_download,
                        token=token,
                        allow_patterns=[glob.escape(name) for name in wanted],
                    ),
                )
            except _UnreachableError as error:
                raise errors.Fail(f"{', '.join(wanted)} of {repository} could not be fetched: {error}") from None
            if Path(found) != root:
                raise errors.Fail(f"The repository {repository} of the hub has changed just now: load the model again")
        return root

    names = [sibling.rfilename for sibling in info.siblings or ()]
    return ModelFiles(names, fetch, f"the repository {repository} of the hub", subfolder)


def upload(
    folder: Path, repository: str, private: bool | None = None, token: bool | str | None = None, message: str = ""
) -> str:
    """Put the files of a folder into a repository, which is made where there is none; the address of the commit."""
    hub = require("huggingface_hub", "Pushing a model to the hub")
    api = hub.HfApi(token=token)

    def put() -> Any:
        api.create_repo(repository, private=private, exist_ok=True)
        return api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message or "Add a model")

    try:
        return str(_told(repository, None, put))
    except _UnreachableError as error:
        raise errors.Fail(f"{folder} could not be pushed to {repository}: {error}") from None


class _UnreachableError(Exception):
    """The hub does not answer."""


def _told(repository: str, revision: str | None, ask: Callable[[], T]) -> T:
    """What the hub answers, its refusals as typed errors; `_UnreachableError` where it does not answer."""
    found = require("huggingface_hub.errors", "Asking the hub")
    try:
        return ask()
    except found.HFValidationError as error:
        raise errors.InvalidArgument(
            f"{repository!r} is neither a folder nor an id of the hub, which is name or owner/name: {error}"
        ) from None
    except found.GatedRepoError:
        raise errors.Fail(
            f"The repository {repository} of the hub asks for consent: give it on its page, and pass token= of an "
            "account that did"
        ) from None
    except found.RepositoryNotFoundError:
        raise errors.NoSuchFile(
            f"There is neither a folder {repository} nor a repository of that id on the hub that can be read without "
            "a token, or with the one that was given. Check the name; a private repository needs token="
        ) from None
    except found.RevisionNotFoundError:
        raise errors.NoSuchFile(f"The repository {repository} of the hub has no revision {revision!r}") from None
    except found.LocalEntryNotFoundError as error:
        raise _UnreachableError(f"the hub cannot be reached ({_first_line(error)})") from None
    except found.EntryNotFoundError as error:
        raise errors.NoSuchFile(f"A file of the repository {repository} is not there: {_first_line(error)}") from None
    except found.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status is not None and status < 500:
            raise errors.Fail(f"The hub refuses the repository {repository}: {_first_line(error)}") from None
        raise _UnreachableError(f"the hub fails ({_first_line(error)})") from None
    except _network_errors() as error:
        raise _UnreachableError(f"the hub cannot be reached ({_first_line(error)})") from None


def _network_errors() -> tuple[type[BaseException], ...]:
    """What clients raise where nobody answers: huggingface_hub asks by requests, from version 1 on by httpx, from
    version 2 on by httpx2."""
    clients = {"requests": "RequestException", "httpx": "HTTPError", "httpx2": "HTTPError"}
    kinds = [getattr(sys.modules[name], error) for name, error in clients.items() if name in sys.modules]
    return (OSError, *kinds)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _repository_folder(repository: str, cache: Path) -> Path:
    return cache / f"models--{repository.replace('/', '--')}"


def _cached(repository: str, revision: str | None, subfolder: str, cache: Path, reason: str) -> ModelFiles:
    """The files of a repository that the cache has; `errors.NoSuchFile`, with the reason for looking no further."""
    folder = _repository_folder(repository, cache)
    wanted = revision or "main"
    reference = folder / "refs" / wanted
    commit = bytes(read_file(reference)).decode().strip() if reference.is_file() else wanted
    root = folder / "snapshots" / commit
    if not root.is_dir():
        there = sorted(entry.name for entry in (folder / "refs").iterdir()) if (folder / "refs").is_dir() else []
        has = f"it has the revisions {', '.join(there)}" if there else "it has nothing of it"
        raise errors.NoSuchFile(
            f"There is no folder {repository}, and the model {repository} is not in the cache {cache} at revision "
            f"{wanted}: {has}. It is not fetched, as {reason}.{unfinished_note(root)}"
        )
    files = ModelFiles.of_folder(root, subfolder)
    return ModelFiles(
        files.names,
        lambda names: root,
        f"the cache of {repository} ({root}), which is looked at as {reason}",
        subfolder,
    )
