"""`ORTModel`: what all classes of Hugging Face models share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sardonyx import errors
from sardonyx.log import Logger
from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass, list_class
from sardonyx.models.devices import asked_device, check_device
from sardonyx.models.folders import layout
from sardonyx.models.folders.companions import companions, copy_file
from sardonyx.models.folders.configs import given_config, load_config
from sardonyx.models.folders.model_files import ModelFiles
from sardonyx.models.folders.opening import open_files
from sardonyx.models.folders.staging import publish_all, staged
from sardonyx.models.held import Held
from sardonyx.models.part import Part
from sardonyx.models.requirements import installed
from sardonyx.models.sessions import SessionSettings

if TYPE_CHECKING:
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.api.session import InferenceSession

LOG = Logger("models")


class PreTrainedModel:
    """The base of all classes here, by whose name the pipelines of transformers 4 know that tensors are torch's."""


class ORTModel(PreTrainedModel, Held):
    """A Hugging Face model that runs on Sardonyx; made by `from_pretrained`.

    `config` is transformers' config, `parts` the sessions by role: ``model``, or such as ``encoder`` and ``decoder``.
    `model_save_dir` is the folder that the model's files lie in. Copies have their own config and share the sessions;
    pickling is a TypeError.
    """

    _own_of_copies = ("config", "generation_config", "preprocessors")
    model_type = "onnx_model"
    base_model_prefix = "onnx_model"
    main_input_name = "input_ids"
    task: ClassVar[str] = "feature-extraction"  # what the model is exported for where there is no ONNX file
    auto_model_class: ClassVar[Any] = AutoClass("AutoModel")
    config_class: ClassVar[Any] = AutoClass("AutoConfig")

    def __init__(
        self,
        *,
        config: Any = None,
        session: InferenceSession | None = None,
        parts: Mapping[str, Part] | None = None,
        use_io_binding: bool | None = None,
        model_save_dir: str | os.PathLike[str] | TemporaryDirectory[str] | None = None,
        preprocessors: Sequence[Any] = (),
    ) -> None:
        """A model of a session, or of several `parts`; `errors.InvalidArgument` for neither.

        `preprocessors` are saved with the model, each by its `save_pretrained`. A `TemporaryDirectory` lives as long as
        the model.
        """
        if parts is None:
            if session is None:
                raise errors.InvalidArgument(f"{type(self).__name__} is made of a session, or of parts; none was given")
            parts = {layout.MODEL: Part(session, bool(use_io_binding))}
        self.config = config
        self.parts = dict(parts)
        self.preprocessors = list(preprocessors)
        self._files: ModelFiles | None = None
        self._temporary = model_save_dir if isinstance(model_save_dir, TemporaryDirectory) else None
        if isinstance(model_save_dir, TemporaryDirectory):
            model_save_dir = model_save_dir.name
        self.model_save_dir = self._main.path.parent if model_save_dir is None else Path(model_save_dir)
        list_class(type(self))

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | os.PathLike[str],
        config: Any = None,
        export: bool = False,
        subfolder: str = "",
        revision: str | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        trust_remote_code: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        token: bool | str | None = None,
        provider: str | None = None,
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        session_options: SessionOptions | None = None,
        use_io_binding: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """A model from a folder, from its ONNX file, or by its id on the Hugging Face hub.

        Folders are recognised as Optimum, transformers.js, onnxruntime-genai and sentence-transformers lay them out;
        `subfolder` is where the ONNX files are looked for. Where a model has none, and with `export`, its PyTorch
        model is exported into a temporary folder, from which `save_pretrained` takes it. `config` is a config, or the
        folder or id of one. `kwargs` holds `file_name`, the ONNX file among several, and what only some classes take,
        such as `use_cache` and `use_merged`.

        Raises `errors.NoSuchFile` for what is missing, with what there is; `errors.InvalidArgument` for several
        candidates, and for a provider that is not there; `errors.Fail` for files that are there by half; and what
        sessions raise for a bad model.
        """
        settings = SessionSettings(provider, providers, provider_options, session_options, use_io_binding)
        hub = {
            "revision": revision,
            "cache_dir": cache_dir,
            "local_files_only": local_files_only,
            "force_download": force_download,
            "token": token,
        }
        files, named = open_files(model_id, subfolder, **hub)
        if named is not None:
            kwargs.setdefault("file_name", named)
        if config is not None:
            config = given_config(config, trust_remote_code=trust_remote_code, **hub)
        if export or (not files.onnx_names and files.weights_name is not None):
            return cls._exported(files, config, settings, export, trust_remote_code, kwargs)
        if config is None:
            config = load_config(files, trust_remote_code=trust_remote_code)
        model = cls._open(files, config, settings, **kwargs)
        model._files = files
        return model

    @classmethod
    def _open(cls, files: ModelFiles, config: Any, settings: SessionSettings, **kwargs: Any) -> Self:
        """The model of a folder: the hook of classes with several files. `kwargs` as of `from_pretrained`."""
        file_name, save_dir = kwargs.pop("file_name", None), kwargs.pop("model_save_dir", None)
        refuse_unknown(cls, kwargs)
        path = files.path(files.require(layout.MODEL, file_name))
        part = settings.open(path)
        return cls(config=config, parts={layout.MODEL: part}, model_save_dir=save_dir or path.parent)

    @classmethod
    def _exported(
        cls,
        files: ModelFiles,
        config: Any,
        settings: SessionSettings,
        asked: bool,
        trust_remote_code: bool,
        kwargs: dict[str, Any],
    ) -> Self:
        """The model from its PyTorch weights."""
        if not asked:
            LOG.warning(f"There is no ONNX file in {files.where}: the PyTorch model is exported", "export")
        if kwargs.pop("file_name", None) is not None:
            LOG.warning("file_name is of no use for a model that is exported", "export")
        from sardonyx.models.folders.exported import export_files

        folder = TemporaryDirectory(prefix="sardonyx-model-")
        made = export_files(files, Path(folder.name), cls.task, trust_remote_code=trust_remote_code)
        config = load_config(made, trust_remote_code=trust_remote_code) if config is None else config
        model = cls._open(made, config, settings, model_save_dir=folder, **kwargs)
        model._files = made
        return model

    def _how_to_make(self) -> str:
        if self._temporary is not None:
            return "Its files are temporary: save it by save_pretrained, and open that folder in each process"
        return f"Call {type(self).__name__}.from_pretrained({str(self.model_save_dir)!r}) in each process"

    @property
    def _main(self) -> Part:
        return next(iter(self.parts.values()))

    @property
    def session(self) -> InferenceSession:
        """The session of the first part."""
        return self._main.session

    @property
    def input_names(self) -> dict[str, int]:
        """The names of the first part's inputs, each with its place."""
        return {name: place for place, name in enumerate(self._main.inputs)}

    @property
    def output_names(self) -> dict[str, int]:
        """The names of the first part's outputs, each with its place."""
        return {name: place for place, name in enumerate(self._main.outputs)}

    @property
    def path(self) -> Path:
        """The ONNX file of the first part."""
        return self._main.path

    @property
    def providers(self) -> list[str]:
        """The names of the session's execution providers, by priority."""
        return self.session.get_providers()

    @property
    def provider(self) -> str:
        """The name of the first execution provider."""
        return self.providers[0]

    @property
    def provider_options(self) -> dict[str, dict[str, str]]:
        """Options by provider."""
        return self.session.get_provider_options()

    @property
    def device(self) -> Any:
        """Where the model runs, as a `torch.device` if torch is installed, else as a text."""
        if not installed("torch"):
            return "cpu"
        import torch

        return torch.device("cpu")

    @property
    def dtype(self) -> Any:
        """The floating-point type of inputs and outputs, as torch's if torch is installed, else as NumPy's."""
        if not installed("torch"):
            return self._main.dtype
        import torch

        return getattr(torch, self._main.dtype.name)

    @property
    def use_io_binding(self) -> bool:
        """Whether runs bind their inputs and outputs."""
        return self._main.use_io_binding

    @use_io_binding.setter
    def use_io_binding(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise errors.InvalidArgument(f"use_io_binding is True or False, and not {value!r}")
        for part in self.parts.values():
            part.use_io_binding = value

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The model itself, which runs on the CPU; dtypes change nothing. InvalidArgument for other devices."""
        device = asked_device(args, kwargs)
        if device is not None:
            check_device(device)
        return self

    def eval(self) -> Self:
        """The model itself: models are run here, not trained."""
        return self

    def can_generate(self) -> bool:
        """Whether the model generates sequences by `generate`."""
        return False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def run(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the first part by name for its inputs by name: arrays for arrays, tensors for tensors."""
        return self._main.run(values)

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write the model's files, its config and its preprocessors into a folder, which `from_pretrained` takes.

        Files come into the folder when all of them are whole: after an error or Ctrl-C it is as it was. It may be the
        folder that the model is from. `push_to_hub` puts the folder on the hub as well: `kwargs` are those of the
        method of that name. `errors.InvalidArgument` where a file has the place of the folder, and where two files have
        one name; `errors.Fail` for a folder that cannot be written.
        """
        folder = Path(save_directory)
        if folder.exists() and not folder.is_dir():
            raise errors.InvalidArgument(f"A model is saved into a folder, and {folder} is a file")
        with staged(folder) as stage:
            try:
                self._write(stage)
            except OSError as error:
                raise errors.Fail(f"The model cannot be saved into {folder}: {error.strerror or error}") from error
            publish_all(stage, folder)
        if push_to_hub:
            self.push_to_hub(folder, **kwargs)

    def _write(self, folder: Path) -> None:
        """Write all files of the model into an empty folder."""
        if self._files is not None:
            for source, name in companions(self._files):
                copy_file(source, folder / name)
        for saved in (self.config, getattr(self, "generation_config", None), *self.preprocessors):
            if saved is not None:
                saved.save_pretrained(folder)
        self._save_pretrained(folder)

    def _save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write the ONNX files alone: what sentence-transformers replaces, to have them in a folder of their own."""
        from sardonyx.models.folders.saving import save_parts

        save_parts([part.path for part in self.parts.values()], Path(save_directory))

    def push_to_hub(
        self,
        save_directory: str | os.PathLike[str],
        repository_id: str,
        private: bool | None = None,
        token: bool | str | None = None,
    ) -> str:
        """Put a folder that the model was saved into into a repository of the hub, which is made if there is none.

        The address of the commit comes back. `errors.Fail` where the hub refuses or cannot be reached.
        """
        from sardonyx.models.folders.hub import upload

        return upload(Path(save_directory), repository_id, private, token)


def refuse_unknown(cls: type, kwargs: Mapping[str, Any]) -> None:
    """`errors.InvalidArgument` for arguments of `from_pretrained` that a class does not take."""
    if kwargs:
        raise errors.InvalidArgument(f"{cls.__name__}.from_pretrained takes no argument {', '.join(sorted(kwargs))}")
