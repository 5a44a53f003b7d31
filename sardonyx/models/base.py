"""`ORTModel`: what all classes of Hugging Face models share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sardonyx import errors
from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass, ConfigClass, register
from sardonyx.models.part import Part
from sardonyx.models.requirements import installed
from sardonyx.models.sessions import SessionSettings

if TYPE_CHECKING:
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.api.session import InferenceSession
    from sardonyx.models.folders.model_files import ModelFiles


class PreTrainedModel:
    """The base of all classes here, by whose name the pipelines of transformers 4 know that tensors are torch's."""


class ORTModel(PreTrainedModel):
    """A Hugging Face model that runs on Sardonyx; made by `from_pretrained`.

    `config` is transformers' config, `parts` the sessions by role: ``model``, or such as ``encoder`` and ``decoder``.
    `model_save_dir` is the folder that the model's files lie in.
    """

    model_type = "onnx_model"
    base_model_prefix = "onnx_model"
    main_input_name = "input_ids"
    task: ClassVar[str] = "feature-extraction"  # what the model is exported for where there is no ONNX file
    auto_model_class: ClassVar[Any] = AutoClass("AutoModel")
    config_class: ClassVar[Any] = ConfigClass()

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
        """A model of a session, or of several `parts`; `errors.InvalidArgument` for neither."""
        if parts is None:
            if session is None:
                raise errors.InvalidArgument(f"{type(self).__name__} is made of a session, or of parts; none was given")
            parts = {"model": Part(session, bool(use_io_binding))}
        self.config = config
        self.parts = dict(parts)
        self.preprocessors = list(preprocessors)
        self._temporary = model_save_dir if isinstance(model_save_dir, TemporaryDirectory) else None
        if isinstance(model_save_dir, TemporaryDirectory):
            model_save_dir = model_save_dir.name
        self.model_save_dir = self._main.path.parent if model_save_dir is None else Path(model_save_dir)
        register(type(self))

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
        """A model from a folder, or by its id on the Hugging Face hub.

        `kwargs` holds `file_name`, the ONNX file among several, and what only some classes take, such as `use_cache`
        and `use_merged`.
        """
        raise NotImplementedError

    @classmethod
    def _open(cls, files: ModelFiles, config: Any, settings: SessionSettings, **kwargs: Any) -> Self:
        """The model of a folder: the hook of classes with several files. `kwargs` as of `from_pretrained`."""
        raise NotImplementedError

    @property
    def _main(self) -> Part:
        return next(iter(self.parts.values()))

    @property
    def session(self) -> InferenceSession:
        """The session of the first part."""
        return self._main.session

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
        for part in self.parts.values():
            part.use_io_binding = bool(value)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The model itself, which runs on the CPU; dtypes change nothing. InvalidArgument for other devices."""
        raise NotImplementedError

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
        """Write the model's files, its config and its preprocessors into a folder, which `from_pretrained` takes."""
        raise NotImplementedError
