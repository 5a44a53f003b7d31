"""Processors: how many this process may use, and the texts by which users choose among them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator

from sardonyx.runtime.control_groups import group_folders

# Threads of a thread pool, at most.
MOST_THREADS = (1 << 15) - 1

_TOPOLOGY = "/sys/devices/system/cpu/cpu{number}/topology/{name}"


def available_processors() -> frozenset[int]:
    """The logical processors that the system lets this process run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return frozenset(range(os.cpu_count() or 1))


def default_threads() -> int:
    """Threads that a thread pool has unless told otherwise: ``OMP_NUM_THREADS``, else one for each physical core.

    Of the cores those count that this process may use, by its affinity mask and the processor quota of its control
    group.
    """
    wished = openmp_threads()
    if wished is not None:
        return wished
    cores = {_core(number) for number in available_processors()}
    quota = _quota()
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def openmp_threads() -> int | None:
    """What ``OMP_NUM_THREADS`` asks for; None where it is not set or says nothing that OpenMP would take.

    Of a list, one number for each level of nested parallelism, the first counts: there is one level here.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and 1 <= int(first) <= MOST_THREADS else None


def openmp_is_passive() -> bool:
    """Whether ``OMP_WAIT_POLICY`` asks threads that wait not to take processor time."""
    return os.environ.get("OMP_WAIT_POLICY", "").strip().upper() == "PASSIVE"


def usable_processors() -> float:
    """Processors' worth of time that this process gets: by its affinity mask and the quota of its control group."""
    count, quota = len(available_processors()), _quota()
    return count if quota is None else min(count, quota)


def thread_pool_size(intra_op: int, inter_op: int = 0, *, parallel: bool = False) -> int:
    """The size of the one thread pool that stands for onnxruntime's two pools; 0 means the default.

    With parallel execution both pools would be busy at once: the thread pool has as many threads as both together, but
    no more than there are processors, unless `intra_op` alone asks for more.
    """
    size = intra_op or default_threads()
    return size + (added_threads(size, inter_op) if parallel else 0)


def added_threads(size: int, inter_op: int) -> int:
    """How many threads parallel execution with `inter_op` threads adds to a thread pool of `size`: its last workers."""
    return max(0, min(size * inter_op, len(available_processors())) - size)


def parse_affinities(text: str) -> tuple[frozenset[int], ...]:
    """The groups of ``session.intra_op_thread_affinities``: ``1,2;3-4``, which counts processors from 1.

    As in onnxruntime, nothing between two separators counts for nothing. Raises ValueError for text of another form.
    """
    return tuple(frozenset(_numbers(group, text)) for group in filter(None, text.split(";")))


def _numbers(group: str, text: str) -> Iterator[int]:
    """The processors of one group, counted from 0."""
    for item in filter(None, group.split(",")):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last:
            raise ValueError(
                f"'{item}' in the affinities '{text}' is neither a processor nor a range of them; they count from 1"
            )
        yield from range(first - 1, last)


def _core(number: int) -> tuple[str, str]:
    """What identifies the physical core of a logical processor; the processor itself where the system does not say."""
    names = ("physical_package_id", "core_id")
    try:
        package, core = (_text(_TOPOLOGY.format(number=number, name=name)).strip() for name in names)
    except OSError:
        return "", str(number)
    return package, core


def _quota() -> float | None:
    """Processors' worth of time that the control groups of this process grant; None without a limit."""
    folders = group_folders("cpu")
    texts = [_texts(folder, "cpu.max") for folder in folders.unified]
    texts += [_texts(folder, "cpu.cfs_quota_us", "cpu.cfs_period_us") for folder in folders.older]
    granted = [
        int(quota) / int(period)
        for quota, period in filter(lambda found: len(found) == 2, texts)
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period)  # not "max" or -1
    ]
    return min(granted, default=None)


def _texts(folder: str, *names: str) -> list[str]:
    """The words in files of a folder; none where one of them is missing."""
    try:
        return [word for name in names for word in _text(f"{folder}/{name}").split()]
    except OSError:
        return []


def _text(path: str) -> str:
    """What the system says in a file; OSError where there is none."""
    with open(path, encoding="utf-8") as file:
        return file.read()
