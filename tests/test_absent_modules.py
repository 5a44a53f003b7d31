"""Imports of modules that onnxruntime has and this package has not."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from sardonyx.absent_modules import REMEDIES


@pytest.mark.parametrize("name", [*REMEDIES, "training.ortmodule", "transformers.fusion_gelu"])
def test_the_error_says_what_to_do(name: str) -> None:
    """A row of the table whose module is there by now has to go."""
    fullname = f"sardonyx.{name}"
    with pytest.raises(ModuleNotFoundError, match=rf"^No module named 'sardonyx\.{name.split('.')[0]}") as raised:
        importlib.import_module(fullname)
    error = raised.value
    assert ": " in str(error)
    assert fullname.startswith(str(error.name))


def test_the_usual_forms_of_import_are_told() -> None:
    with pytest.raises(ModuleNotFoundError, match="models are run here, not trained"):
        from sardonyx.training import TrainingSession  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="models are run here, not trained"):
        import sardonyx.training.ortmodule  # noqa: F401


def test_who_asks_whether_there_is_one_is_told_no() -> None:
    assert importlib.util.find_spec("sardonyx.training") is None
    assert not hasattr(importlib.import_module("sardonyx"), "training")
    with pytest.raises(ImportError):
        from sardonyx import training  # noqa: F401


def test_modules_that_nobody_has_have_the_usual_error() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("sardonyx.nothing")
    assert str(raised.value) == "No module named 'sardonyx.nothing'"
