"""What holds sessions stays in its process: it can be copied there, and not be pickled."""

from __future__ import annotations

import copy
from typing import Any, NoReturn, Self


class Held:
    """A model whose copies share its sessions, which nothing changes."""

    # What of a deep copy is its own, by the names of attributes.
    _own_of_copies: tuple[str, ...] = ()

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = copy.copy(self)
        memo[id(self)] = made
        for name in self._own_of_copies:
            if name in made.__dict__:
                made.__dict__[name] = copy.deepcopy(made.__dict__[name], memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled: it holds sessions. {self._how_to_make()}")

    def _how_to_make(self) -> str:
        """A sentence on how another process comes to such an object."""
        raise NotImplementedError
