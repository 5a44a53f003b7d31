"""The files of a model in a folder, or in a repository of the Hugging Face hub: which there are, and where they lie."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from sardonyx import errors
from sardonyx.graph.load import external_locations
from sardonyx.models.folders import layout
from sardonyx.models.folders.json_files import Section, read_json
from sardonyx.models.folders.wholeness import check_whole, unfinished_note

CONFIG = "config.json"
GENAI_CONFIG = "genai_config.json"
_MODULES = "modules.json"  # of sentence-transformers: which folder holds which part of a pipeline
_MOST_NAMES = 20_000
_MOST_MODULES = 100
_DEEPEST = 4
# Files that a model needs beside its ONNX files, by their endings: configs, tokenizers, processors, templates.
_SMALL = (".json", ".txt", ".model", ".jinja", ".jsonl", ".bpe", ".tiktoken", ".py")
# Weights of PyTorch, from which a model without ONNX files is exported.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")

Fetch = Callable[[Sequence[str]], Path]


class ModelFiles:
    """What there is of a model, by paths relative to its root, with slashes; `where` names the place in errors.

    `subfolder` is where its ONNX files are looked for, and its config before the root's. Files of a hub are fetched
    when `path` is asked for them.
    """

    def __init__(self, names: Sequence[str], fetch: Fetch, where: str, subfolder: str = "") -> None:
        self.names = tuple(sorted(names))
        self.where = where
        self.subfolder = PurePosixPath(subfolder.replace("\\", "/")).as_posix() if subfolder else ""
        self._fetch = fetch

    @classmethod
    def of_folder(cls, folder: Path, subfolder: str = "") -> ModelFiles:
        """The files of a folder of this machine; `errors.NoSuchFile` where there is no such subfolder."""
        if not (folder / subfolder).is_dir():
            there = layout.listed(entry.name for entry in folder.iterdir() if entry.is_dir())
            raise errors.NoSuchFile(f"There is no folder {subfolder} in {folder}; its folders are {there}")
        return cls(list(_names_in(folder)), lambda names: folder, f"the folder {folder}", subfolder)

    @cached_property
    def onnx_names(self) -> list[str]:
        """The ONNX files below the subfolder."""
        prefix = f"{self.subfolder}/" if self.subfolder else ""
        return [name for name in self.names if name.endswith(".onnx") and name.startswith(prefix)]

    @cached_property
    def weights_name(self) -> str | None:
        """The file with the weights of the PyTorch model, or the list of such files; None where there is none."""
        for folder in dict.fromkeys((self.subfolder, "")):
            for name in _WEIGHTS:
                if _joined(folder, name) in self.names:
                    return _joined(folder, name)
        return None

    @cached_property
    def genai_config(self) -> Section | None:
        """What onnxruntime-genai wrote of the model; None where it did not."""
        name = self.find_name(GENAI_CONFIG)
        return None if name is None else self.read_json(name)

    def find(self, role: str, file_name: str | None = None, argument: str = "file_name") -> str | None:
        """The ONNX file of a part (`layout.ROLES`), chosen as by `layout.choose`; None where there is no candidate."""
        return layout.choose(self.onnx_names, role, self.where, file_name, argument, self._named)

    def require(self, role: str, file_name: str | None = None, argument: str = "file_name") -> str:
        """As `find`; `errors.NoSuchFile`, which says what there is, where there is no candidate."""
        found = self.find(role, file_name, argument)
        if found is None:
            raise errors.NoSuchFile(self._missing(role))
        return found

    def find_name(self, name: str) -> str | None:
        """A small file by its name: in the subfolder, in the root, or where sentence-transformers keeps its model."""
        for folder in dict.fromkeys((self.subfolder, "", *self._module_folders)):
            if _joined(folder, name) in self.names:
                return _joined(folder, name)
        return None

    def path(self, name: str) -> Path:
        """Where a file lies on this machine, its external data beside it; a file of the hub is fetched for it.

        `errors.Fail` for a file that is there by half, `errors.NoSuchFile` where external data are missing.
        """
        beside = [other for other in self.names if other.startswith(name) and other != name]
        root = self._fetch([name, *(beside if name.endswith(".onnx") else ())])
        path = root / name
        check_whole(path)
        if name.endswith(".onnx"):
            self._check_external(root, path, PurePosixPath(name).parent)
        return path

    def folder(self) -> Path:
        """The root on this machine with all small files in it: configs, tokenizers, processors."""
        folders = {PurePosixPath(one) for one in ("", self.subfolder, *self._module_folders)}
        paths = [PurePosixPath(name) for name in self.names if name.endswith(_SMALL)]
        return self._fetch([path.as_posix() for path in paths if path.parent in folders])

    def weights_folder(self) -> Path:
        """The folder on this machine with the PyTorch weights, all of them, and the config that they go with.

        `errors.NoSuchFile` where there are none, and where one of several files is missing.
        """
        name = self.weights_name
        if name is None:
            raise errors.NoSuchFile(
                f"There are no weights of a PyTorch model in {self.where}, as an export needs them. Its files are "
                f"{layout.listed(self.names)}"
            )
        place = PurePosixPath(name).parent
        wanted = [name]
        if name.endswith(".index.json"):
            shards = self.read_json(name).get("weight_map")
            wanted = sorted(
                {(place / str(shard)).as_posix() for shard in (shards.values() if isinstance(shards, dict) else ())}
            )
            missing = [shard for shard in wanted if shard not in self.names]
            if missing or not wanted:
                raise errors.NoSuchFile(
                    f"{name} of {self.where} names the files {layout.listed(missing)}, which are not there. Its files "
                    f"are {layout.listed(self.names)}.{unfinished_note(self._fetch([]))}"
                )
        root = self.folder()
        self._fetch(wanted)
        for one in wanted:
            check_whole(root / one)
        return root / place

    def read_json(self, name: str) -> Section:
        """The object that a JSON file holds; `errors.Fail` where it holds none."""
        path = self._fetch([name]) / name
        found = read_json(path)
        if not isinstance(found, dict):
            raise errors.Fail(f"{path} holds no JSON object, but {type(found).__name__}")
        return Section(found, os.fspath(path))

    @cached_property
    def _named(self) -> dict[str, str]:
        """The files that onnxruntime-genai names, by part."""
        if self.genai_config is None:
            return {}
        model = self.genai_config.get("model")
        model = model if isinstance(model, dict) else {}
        folder = PurePosixPath(self.find_name(GENAI_CONFIG) or "").parent
        found: dict[str, str] = {}
        for key, roles in _GENAI_PARTS.items():
            part = model.get(key)
            if isinstance(part, dict) and isinstance(name := part.get("filename"), str):
                found |= {role: (folder / name).as_posix() for role in roles}
        return found

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """The modules that sentence-transformers lists, each as the last word of its class and its folder; empty where
        there is no such list. `errors.Fail` for a list that is none of modules."""
        if _MODULES not in self.names:
            return []
        path = self._fetch([_MODULES]) / _MODULES
        listed = read_json(path)
        if not isinstance(listed, list) or len(listed) > _MOST_MODULES:
            raise errors.Fail(f"{path} is no list of modules of sentence-transformers. Get the file again")
        found = []
        for at, module in enumerate(listed):
            kind, place = (module.get("type", ""), module.get("path")) if isinstance(module, dict) else (None, None)
            if not isinstance(kind, str) or not isinstance(place, str):
                raise errors.Fail(
                    f"{path} is no list of modules of sentence-transformers: [{at}] has no texts as its type and its "
                    "path. Get the file again"
                )
            found.append((kind.rpartition(".")[2], place))
        return found

    @cached_property
    def _module_folders(self) -> list[str]:
        """The folders of modules, the model's before those of pooling."""
        return list(dict.fromkeys(path for _, path in self.modules))

    def _missing(self, role: str) -> str:
        there = f"Its ONNX files are {layout.listed(self.onnx_names)}"
        if not self.onnx_names:
            there = f"Its files are {layout.listed(self.names)}"
            if others := [name for name in self.names if name.endswith(".onnx")]:
                there += f"; ONNX files elsewhere are {layout.listed(others)}"
        inside = f"{self.subfolder} of {self.where}" if self.subfolder else self.where
        what = "model" if role == layout.MODEL else f"{role} of the model"
        return f"There is no ONNX file for the {what} in {inside}. {there}.{unfinished_note(self._fetch([]))}"

    def _check_external(self, root: Path, path: Path, folder: PurePosixPath) -> None:
        for location in external_locations(path):
            name = os.path.normpath(folder / location).replace(os.sep, "/")
            if name.startswith("..") or os.path.isabs(location):
                continue  # which the session refuses, without a look at it
            place = root / name
            if not place.exists() and name in self.names:
                self._fetch([name])
            if place.exists():
                check_whole(place)
                continue
            raise errors.NoSuchFile(
                f"{path} has its weights in the file {location}, which is not beside it. The folder has "
                f"{layout.listed(_beside(path))}.{unfinished_note(root)}"
            )


_GENAI_PARTS = {
    "decoder": (layout.MODEL, layout.DECODER),
    "encoder": (layout.ENCODER,),
    "vision": ("vision_encoder",),
    "speech": ("audio_encoder",),
    "embedding": ("embed_tokens",),
}


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _beside(path: Path) -> list[str]:
    return [entry.name for entry in itertools.islice(path.parent.iterdir(), _MOST_NAMES)]


def _names_in(folder: Path) -> Iterator[str]:
    """The files of a folder to some depth, hidden ones left out; not more than a model can have.

    Links to folders are followed: circles of them end at that depth.
    """
    count = 0
    for place, folders, files in os.walk(folder, followlinks=True):
        relative = Path(place).relative_to(folder)
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one != "__pycache__")
        if len(relative.parts) >= _DEEPEST:
            folders.clear()
        for name in sorted(files):
            if not name.startswith("."):
                count += 1
                if count > _MOST_NAMES:
                    return
                yield (relative / name).as_posix()
