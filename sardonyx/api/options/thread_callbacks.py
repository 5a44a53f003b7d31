"""The functions of a caller that make and end the threads of a pool."""

from __future__ import annotations

from typing import Any

from sardonyx import errors
from sardonyx.api.arguments import wrong_argument
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.threads.thread_pool_options import CreateThread, JoinThread, ThreadHooks


@dataclass
class ThreadCallbacks:
    """What was set of the three; `options` are handed to `create` as they are."""

    create: CreateThread | None = None
    join: JoinThread | None = None
    options: Any = None

    def set_create(self, where: str, create: CreateThread) -> None:
        """TypeError for what cannot be called."""
        self.create = _function(where, create)

    def set_join(self, where: str, join: JoinThread) -> None:
        """TypeError for what cannot be called."""
        self.join = _function(where, join)

    def hooks(self, *, shared: bool = False) -> ThreadHooks | None:
        """What a pool takes, of one session or shared by all; None where nobody makes threads.

        `Fail` where nobody would join them.
        """
        if self.create is None:
            return None
        if self.join is None:
            raise errors.Fail(
                "custom join thread function not set: set_custom_join_thread_fn must be called together with "
                "set_custom_create_thread_fn"
            )
        return ThreadHooks(self.create, self.join, self.options, shared)


def _function(where: str, given: Any) -> Any:
    if not callable(given):
        raise wrong_argument(where, "a function", given)
    return given
