"""transformers' auto classes, imported where they are asked for, and our classes among those that they list.

A pipeline says of a model that it "is not supported" unless the auto class of its task lists the model's class by
name, and speech recognition asks that list how a model is run.
"""

from __future__ import annotations

from typing import Any

from sardonyx.models.requirements import require

_listed: set[type] = set()


class AutoClass:
    """A class attribute that is an auto class of transformers, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(require("transformers", f"{owner.__name__} with its auto class"), self.name)


def list_class(model_class: Any) -> None:
    """Let the auto class of a class of models list it; once is enough.

    Such a list has names of classes by kinds of config: ours have kinds of their own, which no config has, so that
    nothing that an auto class makes is another than before.
    """
    if model_class in _listed:
        return
    _listed.add(model_class)
    mapping = getattr(model_class.auto_model_class, "_model_mapping", None)
    names = getattr(mapping, "_model_mapping", None)
    if isinstance(names, dict):
        names[f"sardonyx_{model_class.__name__}"] = model_class.__name__
