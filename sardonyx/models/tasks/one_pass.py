"""What the classes without generation share: one run of one session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.models import vocabulary
from sardonyx.models.arrays import Array, arrayed
from sardonyx.models.base import LOG, ORTModel
from sardonyx.models.outputs import model_output

# Results that say of what task they are.
_OF_TASKS = frozenset(
    {
        *("logits", "start_logits", "end_logits", "pred_boxes", "reconstruction"),
        *("last_hidden_state", "pooler_output", "sentence_embedding", "embeddings", "text_embeds", "image_embeds"),
    }
)
# Inputs of which a model has one, whose name the pipelines ask for.
_MAIN_INPUTS = ("input_ids", "pixel_values", "input_values", "input_features")


class OnePass(ORTModel):
    """A model whose results are those of one run.

    `result_names` are the results that the task needs, `output_class` the class of transformers that they come in.
    """

    result_names: ClassVar[tuple[str, ...]] = ()
    output_class: ClassVar[str] = ""
    # Other names that exporters give the first result.
    other_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._warned_of: set[str] = set()
        self.main_input_name = next((name for name in _MAIN_INPUTS if name in self._main.inputs), self.main_input_name)

    def _forward(self, given: Mapping[str, Array], others: Mapping[str, Array], return_dict: bool | None) -> Any:
        """The output for the inputs that a task has, and for others that the caller named.

        The model may have more inputs than its task: those the caller names are taken. Names that it has no input
        for are warned of, and left out, as in Optimum: tokenizers give what only some models take.
        """
        named = {name for name, value in others.items() if value is not None}
        if unknown := sorted(named - self._main.inputs.keys() - self._warned_of):
            self._warned_of.update(unknown)
            LOG.warning(
                f"{type(self).__name__} has no input {', '.join(unknown)}: it is left out. Its inputs are "
                f"{', '.join(self._main.inputs)}",
                "forward",
            )
        values = {name: arrayed(value, name) for name, value in {**others, **given}.items()}
        for name in self._main.inputs:
            if values.get(name) is None:
                values[name] = _filled(name, values)
        try:
            results = self._named(self._main.run(values))
        except errors.OnnxRuntimeError as error:
            raise vocabulary.explained(error, values.get("input_ids"), self.config) from error
        if return_dict is False:
            return tuple(results.values())
        return model_output(self.output_class, results)

    def _named(self, results: dict[str, Array]) -> dict[str, Array]:
        """The results with those of the task first, under their names.

        `errors.InvalidArgument` where the model does not have them.
        """
        first = next(iter(self.result_names), None)
        if first is not None and first not in results:
            alike = [name for name in results if name in self.other_names]
            if not alike and len(results) == len(self.result_names) == 1:
                alike = [name for name in results if name not in _OF_TASKS]  # such as "output"
            results = {first if name in alike[:1] else name: value for name, value in results.items()}
        missing = [name for name in self.result_names if name not in results]
        if missing:
            raise errors.InvalidArgument(
                f"The model has the outputs {', '.join(results)}, and {type(self).__name__} gives "
                f"{', '.join(self.result_names)}: it was exported for another task. Use the class of that task, or "
                "ORTModelForCustomTasks, which gives the outputs as they are"
            )
        return {name: results[name] for name in dict.fromkeys((*self.result_names, *results))}


def _filled(name: str, values: Mapping[str, Array]) -> Array | None:
    """What the PyTorch model takes for an input that the caller does not give; None where there is no such rule."""
    if name not in _FILLS:
        return None
    number, sources = _FILLS[name]
    source = next((values[one] for one in sources if values.get(one) is not None), None)
    if source is None:
        return None
    shape = tuple(source.shape)
    if name == "pixel_mask":
        shape = (shape[0], *shape[2:])  # without channels
    return np.full(shape, number, np.int64)


# No padding, one segment, whole images: the number everywhere, in the shape of one of these inputs.
_FILLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "attention_mask": (1, ("input_ids", "input_values")),
    "token_type_ids": (0, ("input_ids",)),
    "pixel_mask": (1, ("pixel_values",)),
}
