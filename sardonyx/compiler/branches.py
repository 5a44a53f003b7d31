"""Another order of steps, in which independent ones stand side by side: for execution of branches in parallel.

Steps between two barriers are claimed by all threads of the thread pool together. In the order of the graph a branch is
followed to its end before the next one begins, with a barrier at nearly every step; by depth, the steps of all
branches that are equally far from the inputs share one phase. More values live at once then.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.bound_step import BoundStep, Buffer


def side_by_side(steps: Sequence[BoundStep]) -> list[BoundStep]:
    """The steps by depth; those of equal depth depend on none of each other, and keep their order."""
    written: dict[Buffer, tuple[int, int]] = {}  # the depth of its last writer, and that one's group
    read: dict[Buffer, int] = {}  # the depth of its deepest reader since
    depths = []
    for step in steps:
        reads = [buffer.settled()[0] for buffer in step.read_buffers]
        writes = [buffer.settled()[0] for buffer in step.written_buffers]
        depth = 0
        for buffer in reads:
            if buffer in written:
                depth = max(depth, written[buffer][0] + 1)
        for buffer in writes:
            if buffer in written:
                last, group = written[buffer]
                depth = max(depth, last if group and group == step.group else last + 1)
            if buffer in read:
                depth = max(depth, read[buffer] + 1)
        for buffer in reads:
            read[buffer] = max(depth, read.get(buffer, 0))
        for buffer in writes:
            last, _ = written.get(buffer, (0, 0))
            written[buffer] = max(depth, last), step.group
        depths.append(depth)
    order = sorted(range(len(steps)), key=depths.__getitem__)
    return [steps[index] for index in order]
