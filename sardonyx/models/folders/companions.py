"""What lies beside the ONNX files of a model and goes where they go: tokenizers, processors, templates."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sardonyx import errors
from sardonyx.models.folders.model_files import ModelFiles
from sardonyx.runtime.files.model_folder import ModelFolder
from sardonyx.runtime.files.opening import open_file, replacing

# Files of tokenizers and processors by name; tokenizers for which no list is complete have these endings.
_NAMES = frozenset(
    {
        "added_tokens.json",
        "bpe.codes",
        "feature_extractor_config.json",
        "generation_config.json",
        "merges.txt",
        "preprocessor_config.json",
        "processor_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "video_preprocessor_config.json",
        "vocab.bpe",
        "vocab.json",
        "vocab.txt",
    }
)
_ENDINGS = (".jinja", ".model", ".spm", ".tiktoken")


def companions(files: ModelFiles) -> Iterator[tuple[Path, str]]:
    """The files of preprocessors: each on this machine, with its name in a folder of a model.

    `errors.InvalidArgument` for a link that leads out of the model's folder, and not into the store of the hub's cache:
    the copy may be given away, and would hold whatever file of this machine the link names.
    """
    root = files.folder()
    folder_of_model = ModelFolder(root)
    for folder in dict.fromkeys(("", files.subfolder)):
        for name in files.names:
            path = PurePosixPath(name)
            if path.parent == PurePosixPath(folder) and (path.name in _NAMES or path.name.endswith(_ENDINGS)):
                if not folder_of_model.has(root / name):
                    raise errors.InvalidArgument(
                        f"{root / name} is a link to {os.path.realpath(root / name)}, which is not in the model's "
                        "folder: it is not copied. Put the file itself in its place first, or remove the link"
                    )
                yield root / name, path.name


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, links followed; nothing where both are the same file."""
    if target.exists() and target.samefile(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_file(source) as old, replacing(target) as new:
        shutil.copyfileobj(old, new)
