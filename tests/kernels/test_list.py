"""The list of kernels that ship ready: it is what this version of the package understands and asks for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernels import building, examples, machines, spelling
from kernels.building import LIST, Listed
from kernels.collecting import asked_for
from sardonyx.compiler.llvm.installed_packs import pack_name
from sardonyx.compiler.llvm.target import Caches

STALE = "kernels/list.jsonl is not up to date: run `make kernel-list`, and commit it"
# Small machines and large ones, by which all that looks at caches would differ.
LEAST, LARGEST = Caches(16 << 10, 128 << 10, 1 << 20), Caches(128 << 10, 4 << 20, 512 << 20)
_PARTS = 4

pytestmark = pytest.mark.names_targets


@pytest.fixture(scope="module")
def listed() -> list[Listed]:
    try:
        return building.read_list()
    except spelling.SpellingError as error:
        pytest.fail(f"{STALE} ({error})")


def test_every_line_says_the_same_when_it_is_read_and_written() -> None:
    lines = [json.loads(line) for line in LIST.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 500
    for line in lines:
        assert {"for": line["for"], **spelling.spelled(*spelling.read(line))} == line, STALE


def test_its_order_and_targets(listed: list[Listed]) -> None:
    keys = [one.key for one in listed]
    assert keys == sorted(set(keys))
    assert {name for one in listed for name in one.names} == set(machines.targets())


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_kernel_can_be_written_and_no_cache_is_looked_at(part: int, listed: list[Listed]) -> None:
    targets = machines.targets()
    for one in listed[part::_PARTS]:
        target = targets[sorted(one.names)[0]]
        small = one.emit(replace(target, caches=LEAST), one.spec)
        assert small == one.emit(replace(target, caches=LARGEST), one.spec), one.key


def test_every_kind_of_kernel_on_every_target_whatever_the_caches(listed: list[Listed]) -> None:
    kinds = {(one.emit, name): one.spec for one in listed for name in one.names}
    targets = machines.targets()
    for (emit, name), spec in kinds.items():
        texts = [emit(replace(targets[name], caches=caches), spec) for caches in (LEAST, LARGEST)]
        assert texts[0] == texts[1], (name, emit)


@pytest.mark.parametrize("name", list(machines.targets()))
def test_what_models_ask_for_is_listed(name: str, listed: list[Listed]) -> None:
    """On each machine that the list is made for, so that a change of what sessions choose is noticed."""
    known = {one.key for one in listed if name in one.names}
    for example in examples.small():
        for target, threads in machines.machines(name):
            asked, problem = asked_for(example.model, example.inputs(), target, threads)
            assert problem == ""
            assert len(asked) >= 3
            assert set(asked) <= known, f"{STALE} ({example.name}, {name}: {sorted(set(asked) - known)[0][:200]})"


def test_no_two_packs_have_one_name() -> None:
    targets = machines.targets()
    assert len({pack_name(one) for one in targets.values()}) == len(targets)
    others = machines.targets("darwin")
    assert not {pack_name(one) for one in targets.values()} & {pack_name(one) for one in others.values()}
