"""Tests of the choice of processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from sardonyx.runtime import control_groups
from sardonyx.runtime.threads import processors


def _machine(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], allowed: set[int]) -> None:
    """A machine of which the system shows these files only."""

    def text(path: str) -> str:
        try:
            return files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processors, "_text", text)
    monkeypatch.setattr(processors, "available_processors", lambda: frozenset(allowed))


def _cores(of: dict[int, tuple[int, int]]) -> dict[str, str]:
    files = {}
    for number, (package, core) in of.items():
        folder = f"/sys/devices/system/cpu/cpu{number}/topology"
        files[f"{folder}/physical_package_id"] = f"{package}\n"
        files[f"{folder}/core_id"] = f"{core}\n"
    return files


def test_there_is_one_thread_for_each_physical_core(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = _cores({0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (0, 1), 4: (1, 0), 5: (1, 0)})
    _machine(monkeypatch, siblings, {0, 1, 2, 3, 4, 5})
    assert processors.default_threads() == 3


def test_only_the_cores_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, _cores({i: (0, i) for i in range(8)}), {1, 5})
    assert processors.default_threads() == 2


@pytest.mark.parametrize(("text", "threads"), [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1)])
def test_the_quota_of_the_control_group_is_respected(monkeypatch: pytest.MonkeyPatch, text: str, threads: int) -> None:
    files = {**_cores({i: (0, i) for i in range(8)}), "/sys/fs/cgroup/cpu.max": text}
    _machine(monkeypatch, files, set(range(8)))
    assert processors.default_threads() == threads


def test_quotas_of_all_groups_up_to_the_root_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As under systemd, where the root shows no quota and the service's group, or the slice around it, does."""
    own = tmp_path / "cgroup"
    monkeypatch.setattr(control_groups, "_OWN", str(own))
    files = _cores({i: (0, i) for i in range(8)})
    files["/sys/fs/cgroup/a.slice/cpu.max"] = "300000 100000"
    files["/sys/fs/cgroup/a.slice/b:c.service/cpu.max"] = "max 100000"
    files["/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us"] = "200000"
    files["/sys/fs/cgroup/cpu/a/cpu.cfs_period_us"] = "100000"
    _machine(monkeypatch, files, set(range(8)))
    for text, threads in (
        ("0::/a.slice/b:c.service\n", 3),
        ("3:cpuacct,cpu:/a/b\n1:memory:/\n0::/\n", 2),
        ("4:cpuset:/a\n0::/../../a.slice\n", 8),
        ("", 8),
    ):
        own.write_text(text)
        assert processors.default_threads() == threads


@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("200000", 2)])
def test_the_quota_of_an_older_control_group(monkeypatch: pytest.MonkeyPatch, quota: str, threads: int) -> None:
    files = {
        **_cores({i: (0, i) for i in range(8)}),
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": quota,
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    _machine(monkeypatch, files, set(range(8)))
    assert processors.default_threads() == threads


def test_a_system_that_tells_nothing_has_as_many_cores_as_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, {}, {0, 1, 2})
    assert processors.default_threads() == 3


def test_the_thread_pool_stands_for_both_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, {}, set(range(8)))
    assert processors.thread_pool_size(0) == 8
    assert processors.thread_pool_size(2, 3) == 2
    assert processors.thread_pool_size(2, 3, parallel=True) == 6
    assert processors.thread_pool_size(4, 4, parallel=True) == 8
    assert processors.thread_pool_size(20, 2, parallel=True) == 20
    assert processors.thread_pool_size(2, 0, parallel=True) == 2


def test_affinities_count_processors_from_one() -> None:
    assert processors.parse_affinities("1,2;3-5") == (frozenset({0, 1}), frozenset({2, 3, 4}))
    assert processors.parse_affinities("7") == (frozenset({6}),)
    assert processors.parse_affinities("1-2,4;8") == (frozenset({0, 1, 3}), frozenset({7}))
    assert processors.parse_affinities(";1,,2;3;") == (frozenset({0, 1}), frozenset({2}))


@pytest.mark.parametrize("text", ["a", "0", "0-2", "3-1", "5,3-1", "1-", "-1", "1-2-3", "1.5"])
def test_affinities_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="affinities"):
        processors.parse_affinities(text)


@pytest.mark.parametrize(("text", "threads"), [("3", 3), (" 16 ", 16), ("5,2", 5)])
def test_openmp_chooses_the_default(monkeypatch: pytest.MonkeyPatch, text: str, threads: int) -> None:
    _machine(monkeypatch, {}, set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert processors.default_threads() == threads
    assert processors.thread_pool_size(0) == threads
    assert processors.thread_pool_size(2) == 2  # what a session says counts more


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1.5", "99999"])
def test_what_openmp_would_not_take_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    _machine(monkeypatch, {}, set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert processors.openmp_threads() is None
    assert processors.default_threads() == 8


def test_parallel_execution_adds_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, {}, set(range(8)))
    assert processors.added_threads(2, 3) == 4
    assert processors.added_threads(4, 4) == 4
    assert processors.added_threads(20, 2) == 0
    assert processors.added_threads(2, 0) == 0
