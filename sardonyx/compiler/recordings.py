"""Bindings that are done once and repeated for other layers: the recordings of one segment.

What a kernel adds to a plan depends on its parameters and on how its inputs look: dtypes, shapes, strides, places in
their buffers, and the contents of those few whose contents it reads. If all of that was seen before, in this operation
or in another one of the same structure, the recorded steps are put onto other buffers: a model of equal layers binds
one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

from sardonyx.compiler.binding import Array, Binder, Buffer
from sardonyx.compiler.bound_step import contents_of
from sardonyx.compiler.recording import Bind, Recording, Tensors, record
from sardonyx.runtime.forks import free_in_child

# Recordings of a segment; beyond, all are dropped. Each takes a few kilobytes.
MOST_RECORDINGS = 4096


class Recordings:
    """The recordings of one segment; `lasting` are constants that live as long as it does."""

    def __init__(self, lasting: Sequence[Array | Buffer]) -> None:
        self.lasting = frozenset(map(id, lasting))
        # For each look of the inputs: the places whose contents were read, and the recordings by those contents.
        self._known: dict[Hashable, tuple[tuple[int, ...], dict[Hashable, Recording]]] = {}
        self._count = 0
        self._lock = free_in_child(threading.Lock())

    def bind(
        self, structure: Hashable, bind: Bind, binder: Binder, inputs: Tensors
    ) -> tuple[Tensors, Recording | None]:
        """What `bind` does for these inputs, replayed if something of the same structure did the same before.

        Functions of equal `structure` do the same for inputs that look the same. The recording is None for what cannot
        be done again. A rehearsal, which comes before all else, makes the same steps as a binding for the same inputs,
        beside kernels for others: so that binding need not do them again.
        """
        look = structure, looks_of(inputs)
        known = self._known.get(look)
        if known is not None:
            places, recordings = known
            recording = recordings.get(tuple([contents_of(inputs[place]) for place in places]))
            if recording is not None:
                return recording.replay(binder, inputs), recording
        seen: set[int] = set()
        outputs, found = record(bind, binder, inputs, seen, self.lasting)
        if found is not None:
            self._keep(look, seen, inputs, found)
        return outputs, found

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


def looks_of(inputs: Tensors) -> Hashable:
    """All that a kernel can see of its inputs but their contents; which of them share a buffer, too."""
    found: list[Hashable] = []
    places: dict[Buffer, int] = {}
    for one in inputs:
        if one is None:
            found.append(None)
            continue
        buffer = one.buffer
        found.append((buffer.kind, buffer.nbytes, one.look, one.is_known, places.setdefault(buffer, len(places))))
        if buffer.home is not None:
            root, start = buffer.settled()
            found.append((places.setdefault(root, len(places)), root.kind, root.nbytes, start))
    return tuple(found)
