"""Bindings that are done once and replayed: for other shapes elsewhere in the model, and for other layers.

What a kernel adds to a plan depends on its parameters and on how its inputs look: dtypes, shapes, strides, places in
their buffers, and the contents of those few whose contents it reads. Where all of that was seen before, in this
operation or in another one of the same structure, the recorded steps are put onto other buffers instead of being
worked out again: a model of equal layers binds one of them, and generation, in which only the past grows, binds
little more than one attention.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from functools import partial

from sardonyx.compiler.binding import Array, Binder, Buffer
from sardonyx.compiler.bound_step import contents_of
from sardonyx.compiler.new_sizes.formulas import Formulas
from sardonyx.compiler.new_sizes.looks import Looks, Tensors
from sardonyx.compiler.new_sizes.recording import Bind, Recording, record
from sardonyx.compiler.pieces import PieceMaker
from sardonyx.runtime.forks import free_in_child

# Recordings of a segment; beyond, all are dropped. Each takes a few kilobytes.
MOST_RECORDINGS = 4096


class Replays:
    """The recordings of one segment; `lasting` are constants that live as long as it does.

    Segments that share tensors share their `looks`.
    """

    def __init__(self, lasting: Sequence[Array | Buffer], looks: Looks) -> None:
        self.lasting = frozenset(map(id, lasting))
        self._looks = looks
        # For each look of the inputs: the places whose contents were read, and the recordings by those contents.
        self._known: dict[Hashable, tuple[tuple[int, ...], dict[Hashable, Recording]]] = {}
        self._count = 0
        self._lock = free_in_child(threading.Lock())
        self.formulas = Formulas(self.lasting, looks)

    def bind(
        self, structure: Hashable, bind: Bind, binder: Binder, inputs: Tensors, *, as_piece: bool = False
    ) -> tuple[Tensors, Recording | None]:
        """What `bind` does for these inputs, replayed where something of the same structure did the same before.

        Functions of equal `structure` do the same for inputs that look the same. The recording is None for what cannot
        be done again. With `as_piece`, the steps are in its piece, and the binder gets none. A rehearsal, which comes
        before all else, makes the same steps as a binding for the same inputs, beside kernels for others: so that
        binding need not do them again.
        """
        look = structure, self._looks.of(inputs)
        known = self._known.get(look)
        if known is not None:
            places, recordings = known
            recording = recordings.get(tuple([contents_of(inputs[place]) for place in places]))
            if recording is not None and (as_piece or recording.steps is not None):
                return recording.replay(binder, inputs, as_piece=as_piece), recording
        if as_piece:
            recording = self.formulas.find(structure, inputs)
            if recording is not None:
                return recording.replay(binder, inputs, as_piece=True), recording
        seen: set[int] = set()
        maker = PieceMaker if as_piece else None
        outputs, found, steps = record(bind, binder, inputs, seen, self.lasting, self._looks, maker)
        if found is not None:
            if steps is not None:
                found.keep_piece(steps)
            self._keep(look, seen, inputs, found)
            self._learn(structure, bind, binder, inputs, as_piece)
        return outputs, found

    def _learn(self, structure: Hashable, bind: Bind, binder: Binder, inputs: Tensors, as_piece: bool) -> None:
        """Make a formula of what was recorded, if pieces are wanted."""

        def record_traced(traced: Tensors) -> tuple[Recording, PieceMaker] | None:
            maker = partial(PieceMaker, traced=True)
            _, found, steps = record(bind, binder.beside(), traced, set(), self.lasting, None, maker)
            return None if found is None or steps is None else (found, steps)

        wanted = record_traced if as_piece and binder.formulas > 0 else None
        binder.formulas -= self.formulas.learn(structure, inputs, wanted)

    def _keep(self, look: Hashable, seen: set[int], inputs: Tensors, recording: Recording) -> None:
        with self._lock:
            if self._count >= MOST_RECORDINGS:
                self._known.clear()
                self._count = 0
            self._count += 1
            known = self._known.get(look)
            if known is None or not seen.issubset(known[0]):
                places = tuple(sorted(seen if known is None else seen.union(known[0])))
                known = self._known[look] = places, {}
            known[1][tuple([contents_of(inputs[place]) for place in known[0]])] = recording
