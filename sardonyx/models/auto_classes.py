"""transformers' auto classes, imported where they are asked for, and our classes among what they know.

A pipeline of transformers says of a model that it "is not supported" unless the auto classes of its task know the
model's class by name.
"""

from __future__ import annotations

from typing import Any

from sardonyx.models.requirements import require

_registered: set[type] = set()


class AutoClass:
    """A class attribute that is an auto class of transformers, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(require("transformers", f"{owner.__name__}.auto_model_class"), self.name)


class ConfigClass:
    """A class attribute: the class that configs are made by, of its own for each class of models.

    An auto class keeps models by the class of their configs, one for each: with a shared one, the class that was
    registered last would replace the others.
    """

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def __get__(self, instance: object, owner: type) -> Any:
        if owner not in self._made:
            auto_config = require("transformers", f"{owner.__name__}.config_class").AutoConfig
            self._made[owner] = type(f"{owner.__name__}Config", (auto_config,), {"__module__": owner.__module__})
        return self._made[owner]


def register(model_class: Any) -> None:
    """Let the auto class of a class of models know it; once is enough."""
    if model_class in _registered:
        return
    _registered.add(model_class)
    auto = model_class.auto_model_class
    if hasattr(auto, "register"):
        auto.register(model_class.config_class, model_class, exist_ok=True)
