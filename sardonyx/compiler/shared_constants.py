"""Constants that are made for kernels, shared by the sessions of the process that make the same of the same weights.

A session holds what it uses; what nobody holds any more is gone. What two sessions share is told by the identity of the
contents, the target of the kernels and the key of what is made (see `Binder.derived`). A session that began from an
engine takes what that holds before it makes anything (`offering`).
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from sardonyx.compiler.bound_step import Array, Buffer, ComputedBuffer, Identity, constant_copy
from sardonyx.runtime.files.content_identity import content_identity
from sardonyx.runtime.memory.constant_memory import WEIGHTS
from sardonyx.runtime.memory.memory import Charge, applied_limit

# To tell small contents from others is not worth what it would save.
LEAST_BYTES = 64 << 10


class SharedConstant:
    """An array that was made, and how many segments use it."""

    __slots__ = ("__weakref__", "array", "key", "users")

    def __init__(self, key: Hashable, array: Array) -> None:
        self.key, self.array = key, array
        self.users = 0


class Use:
    """That a segment uses an array: alone, or as one of the users of a shared one. It counts as the session's."""

    __slots__ = ("_charge", "array", "shared")

    def __init__(self, array: Array, shared: SharedConstant | None, charge: Charge | None) -> None:
        self.array, self.shared, self._charge = array, shared, charge
        if shared is not None:
            shared.users += 1

    def __del__(self) -> None:
        if self.shared is not None:
            self.shared.users -= 1

    @property
    def key(self) -> Hashable | None:
        """What tells a shared one from others; None for one that is not shared."""
        return None if self.shared is None else self.shared.key

    @property
    def is_shared(self) -> bool:
        """Whether others use it as well."""
        return self.shared is not None and self.shared.users > 1


_KNOWN: weakref.WeakValueDictionary[Hashable, SharedConstant] = weakref.WeakValueDictionary()


# Gives the constant of a key, if somebody has it.
Offers = Callable[[Hashable], "Array | None"]


class _Offering(threading.local):
    offers: Offers | None = None


_OFFERING = _Offering()


@contextlib.contextmanager
def offering(offers: Offers | None) -> Iterator[None]:
    """Inside, what this thread makes a segment of takes constants that are offered before it makes them, then and
    later. Whoever offers vouches that a constant is what would be made."""
    outer, _OFFERING.offers = _OFFERING.offers, offers
    try:
        yield
    finally:
        _OFFERING.offers = outer


class ConstantShares:
    """What a segment makes of constants, for kernels of one target; it counts against the limit of its session."""

    def __init__(self, target: Hashable) -> None:
        self._target = target
        self._limit = applied_limit()
        self._offers = _OFFERING.offers
        # Of arrays that were made, of which others are made in turn.
        self._identities: dict[int, tuple[weakref.ref[Array], Hashable]] = {}

    def make(self, origin: Array | Buffer | None, key: Hashable, make: Callable[[], Array]) -> Use:
        """What `make` gives of the contents that `origin` stands for (None: of others than the model's), or an equal
        array that somebody has.

        `key` says all that the result depends on but the contents and the target.
        """
        identity = None if origin is None else self._identity(origin)
        return self._use(make(), None) if identity is None else self._shared(identity, origin, key, make)

    def _shared(
        self, identity: Hashable, origin: Array | Buffer | None, key: Hashable, make: Callable[[], Array]
    ) -> Use:
        whole = identity, self._target, key
        known = _KNOWN.get(whole)
        if known is None:
            offered = None if self._offers is None else self._offers(whole)
            array = make() if offered is None else offered
            if isinstance(origin, np.ndarray) and np.may_share_memory(array, origin):
                return self._use(array, None)  # memory of one session's model
            known = _KNOWN.setdefault(whole, SharedConstant(whole, array))
        self._identities[id(known.array)] = weakref.ref(known.array), whole
        return self._use(known.array, known)

    def hold(self, compute: Callable[[], Array], identity: Identity) -> tuple[Array, Use]:
        """What `compute` gives, as an array that stays, or an equal one that somebody has; and that it is used."""

        def copied() -> Array:
            return constant_copy(compute)[0]

        known = identity()
        use = self._use(copied(), None) if known is None else self._shared(known, None, "as it is", copied)
        return use.array, use

    def _use(self, array: Array, shared: SharedConstant | None) -> Use:
        return Use(array, shared, None if self._limit is None else self._limit.charge(array.nbytes, WEIGHTS))

    def _identity(self, origin: Array | Buffer) -> Hashable | None:
        """The identity of contents; None for those that nobody shares."""
        if origin.nbytes < LEAST_BYTES:
            return None
        if isinstance(origin, Buffer):
            return origin.identity() if isinstance(origin, ComputedBuffer) else None
        made = self._identities.get(id(origin))
        return made[1] if made is not None and made[0]() is origin else content_identity(origin)
