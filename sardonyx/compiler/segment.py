"""A segment: nodes between two host steps, compiled to native code as one step of the session's plan.

`segment_build.py` lowers and fuses once. `bind` makes the native plan for given shapes of the inputs. It binds the
operations one by one: it walks them with tensors that have shapes and no contents, computes what follows from shapes
alone, and collects the steps. For further shapes it evaluates the symbolic plan that comes of such a walk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sardonyx import errors
from sardonyx.compiler.batches.batch_size import NotSeparableError, batch_in_rounds
from sardonyx.compiler.binding import Array, Bound, Fault, Stretch, Tensor
from sardonyx.compiler.joint_results import Rooms
from sardonyx.compiler.llvm.compiler_process import held
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.compiler.operation import BoundOperation, Operation, OperationError
from sardonyx.compiler.segment_operations import SegmentOperations
from sardonyx.compiler.symbolic.layout import LaterSteps, Sample
from sardonyx.compiler.symbolic.plan import SymbolicPlans
from sardonyx.light_dataclass import dataclass

Shapes = Sequence[Sequence[int]]
Contents = Sequence[Array]


@dataclass
class Segment(SegmentOperations):
    """A segment, and the ways to its plans."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Pairs depend on sizes, and steps side by side come in another order than their operations.
        is_plain = not self.pairs and self.settings.branches == 1 and self.settings.reuses_memory
        known = self.operations, self._constants, self.numbers_of(self.outputs), self.slices
        self._symbolic = SymbolicPlans(*known, self._recordings.lasting) if is_plain else None

    @held()
    def bind(
        self, shapes: Shapes, contents: Contents = (), *, rehearses: bool = False
    ) -> tuple[Bound, dict[int, Array]]:
        """The native plan for inputs of these shapes, and those outputs (by place) that are known already.

        `contents` are those of the inputs at `steering_places`. With `rehearses`, the shapes are guessed, and kernels
        for others are made ready as well. OperationError where the shapes break the rule of a node.

        A batch may be done in rounds of fewer items, see `batch_rounds`.
        """
        reason = ""
        whole = bool(self.steering_places) or not (self.settings.reuses_memory and self.settings.packs)
        if not whole and batch_in_rounds(shapes, self.settings.batch_items):
            from sardonyx.compiler.batches.batch_rounds import bind_in_rounds

            try:
                bound = bind_in_rounds(self, shapes)
            except (NotSeparableError, OperationError, OverflowError) as error:
                bound, reason = None, f"all items at a time: {error}"
            if bound is not None:
                return bound, {}
        bound, known = self._bind_whole(shapes, contents, rehearses=rehearses)
        if reason:
            bound = replace(bound, stretches=(Stretch(len(bound.steps), 1, reason),))
        return bound, known

    def _bind_whole(self, shapes: Shapes, contents: Contents, *, rehearses: bool) -> tuple[Bound, dict[int, Array]]:
        """What `bind` gives for all items at once."""
        symbolic = None if rehearses else self._symbolic
        evaluated = None if symbolic is None else self._evaluated(symbolic, shapes, contents)
        if evaluated is not None:
            return evaluated
        bound, known, operations, constants, is_whole = self._bind_all(shapes, contents, rehearses=rehearses)
        # What is copied without a step has no elements here; for other sizes it may have some.
        if symbolic is not None and (is_whole or (operations and operations[-1].end != len(bound.steps))):
            made = len(self.outputs) - len(known)
            symbolic.learn(Sample(operations, bound.steps, len(self.inputs), made, constants))
        return bound, known

    def _bind_all(
        self, shapes: Shapes, contents: Contents, *, rehearses: bool = False
    ) -> tuple[Bound, dict[int, Array], list[BoundOperation], list[Array], bool]:
        """The same operation by operation; with the operations, the constants that the plan keeps alive, and whether
        operations make all outputs in memory of their own."""
        binder = self.binder(rehearses)
        values = self.constants | self.brought(binder, shapes, contents)
        chosen = self.chosen(self.operations, binder, values)
        operations = self.bind_operations(binder, chosen, values, Rooms(self.slices), forgets=True)
        results, known = self._made(values.__getitem__)
        is_whole = _are_whole(results)
        try:
            bound = binder.finish(results, len(self.inputs), copy)
        except OverflowError as error:
            raise errors.Fail("Failed to allocate memory for requested buffer: a size exceeds 64 bits") from error
        return bound, known, operations, binder.constants, is_whole

    def _evaluated(
        self, symbolic: SymbolicPlans, shapes: Shapes, contents: Contents
    ) -> tuple[Bound, dict[int, Array]] | None:
        """The same by the symbolic plan, if there is one for such inputs; its steps are bound when they are asked for.

        If an operation refuses its inputs, the ordinary way says so.
        """
        binder = self.binder()
        try:
            evaluated = symbolic.evaluate(binder, self.brought(binder, shapes, contents))
            if evaluated is None:
                return None
            found, layout, noting = evaluated
            results, known = self._made(found.value)
            if not _are_whole(results):
                return None
            plan, constant_words = layout.plan(found.numbers, self.settings.flush_denormals)
        except OverflowError:  # a size that exceeds 64 bits
            return None
        described = tuple([(tensor.dtype, tensor.shape) for tensor in results])
        steps = LaterSteps(len(plan.labels), lambda: self._bind_all(shapes, contents)[0].steps)
        # Messages tell sizes: the ordinary way knows those of these inputs.
        faults = tuple(
            [
                Fault(BoundOperation(operation, ()), partial(self._describe, shapes, contents, place))
                for place, (operation, _) in enumerate(noting)
            ]
        )
        return Bound(plan, described, steps, faults, alike=layout.steps, constant_words=constant_words), known

    def _describe(self, shapes: Shapes, contents: Contents, place: int, number: int) -> Exception:
        """The error for the number that the fault at this place among those of a plan notes."""
        return self._bind_all(shapes, contents)[0].faults[place].describe(number)

    def _made(self, value_of: Callable[[int], Tensor | None]) -> tuple[list[Tensor], dict[int, Array]]:
        """The outputs that a plan makes, and those, by place, that are known already."""
        known: dict[int, Array] = {}
        results: list[Tensor] = []
        for index, value in enumerate(self.outputs):
            tensor = value_of(self._numbers[value])
            assert tensor is not None
            if tensor.array is not None:
                known[index] = tensor.array
            else:
                results.append(tensor)
        return results, known

    def restricted(self, places: Sequence[int]) -> Segment:
        """The segment that makes only the outputs at these places, with the same kernels."""
        outputs = tuple(self.outputs[place] for place in places)
        wanted = {self._numbers[value] for value in outputs}
        kept: list[Operation] = []
        for operation in reversed(self.operations):
            if wanted.intersection(operation.outputs):
                kept.append(operation)
                wanted.update(operation.inputs)
        pairs = [
            (value, dtype)
            for value, dtype in zip(self.inputs, self.input_dtypes, strict=True)
            if self._numbers[value] in wanted
        ]
        return replace(
            self,
            groups=tuple(operation.group for operation in reversed(kept)),
            operations=tuple(reversed(kept)),
            inputs=tuple(value for value, _ in pairs),
            input_dtypes=tuple(dtype for _, dtype in pairs),
            outputs=outputs,
        )


def _are_whole(outputs: Sequence[Tensor]) -> bool:
    """Whether each of a plan's outputs fills a buffer of its own, so that none of them is copied."""
    return all(tensor.fills_buffer for tensor in outputs) and len({tensor.buffer for tensor in outputs}) == len(outputs)
