"""The readers of what is kept beside engines: trust records, figures of the machine, compiled kernels."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from sardonyx.compiler.choice import tuned
from sardonyx.compiler.choice.gemm_blocking import Tuning
from sardonyx.compiler.native.convolution.algorithm import Rates as ConvolutionRates
from sardonyx.compiler.native.convolution.winograd_choice import Costs, FarCosts
from sardonyx.compiler.native.rows.rows import Rates as RowRates
from sardonyx.runtime.files import kernel_cache, machine_file
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.files.trust_records import TrustRecord, TrustRecords
from sardonyx.tuning.ceilings import Ceilings
from tests.robustness.guided.json_values import changed_value, text_of
from tests.robustness.guided.target import Target, with_other_bytes, write_private

_DIGEST = "5a" * 32
_MACHINE = "a machine"
_KERNEL = "a kernel"

# Trust records


def _trust_record_seeds() -> list[bytes]:
    return [
        text_of({"digest": _DIGEST, "made": True, "states": [[1, 2, 3, 4, 5]]}),
        text_of({"digest": _DIGEST, "made": False, "states": []}),
    ]


def _change_trust_record(data: bytes, choice: random.Random) -> bytes:
    changed = changed_value(json.loads(data), choice)
    if isinstance(changed, dict) and choice.random() < 0.8:
        changed["digest"] = _DIGEST
    return text_of(changed)


def _check_trust_record(data: bytes, folder: Path) -> bool:
    """What the file says, or an empty trust record; whatever it says, a new one can be written in its place."""
    trust_records = TrustRecords(str(folder))
    (folder / "engines").mkdir(mode=0o700, exist_ok=True)
    path = trust_records._path(_DIGEST)
    assert path is not None
    write_private(path, data)
    found = trust_records.find(_DIGEST)
    said = json.loads(data) if found != TrustRecord() else {"made": False, "states": []}
    assert found.made == (said["made"] is True)
    assert len(found.states) == min(len(said["states"]), 8)
    assert all(isinstance(part, int) for state in found.states for part in state)
    trust_records.note_made(_DIGEST)
    again = trust_records.find(_DIGEST)
    assert again.made
    assert list(again.states) == list(found.states)
    return found != TrustRecord() or said == json.loads(_trust_record_seeds()[1])


def _trust_record_found() -> list[bytes]:
    start = text_of({"digest": _DIGEST, "made": True, "states": []})[:-2]
    return [start + b"[" * 20_000, start + b"[Infinity]]}", start + b"[1e400]]}", b'{"digest": ' + b"[" * 20_000]


# Figures of the machine


def _machine_bytes(sections: Any) -> bytes:
    content = {"format": 1, "machine": _MACHINE, "sections": sections, "digest": machine_file._digest(sections)}
    return text_of(content)


def _machine_seeds() -> list[bytes]:
    ceilings = {"compute": {"1": {"f32": 100.0}}, "read": {"1": {"L2": 50.0, "L3": 20.0, "DRAM": 9.0}}}
    numbers = {"gemm": {"chunk": 4}, "rows": {}, "convolution": {}}
    return [_machine_bytes({"ceilings": {**ceilings, "l2": 1 << 20, "l3": 1 << 24}, "tuning": numbers})]


def _change_machine(data: bytes, choice: random.Random) -> bytes:
    return _machine_bytes(changed_value(json.loads(data)["sections"], choice))


def _check_machine(data: bytes, folder: Path) -> bool:
    """Sections, or nothing; who reads numbers from them gets numbers, or defaults."""
    path = machine_file._file(_MACHINE, str(folder))
    assert path is not None
    write_private(path, data)
    found = machine_file.read_sections(_MACHINE, str(folder))
    assert all(isinstance(name, str) and isinstance(section, dict) for name, section in found.items())
    stored = found.get(tuned.SECTION, {})
    for kind in (Tuning, ConvolutionRates, Costs, FarCosts, RowRates):
        for name in ("gemm", "rows", "convolution", "winograd"):
            tuned.with_stored(kind(), stored.get(name))
    try:
        ceilings = Ceilings.from_json(found.get("ceilings", {}))
    except ValueError:
        return False
    for arithmetic in ("f32", "u8s8"):
        if ceilings.has(arithmetic):
            assert ceilings.flops(2, arithmetic) > 0
    return bool(found)


def _machine_found() -> list[bytes]:
    seed = json.loads(_machine_seeds()[0])["sections"]
    huge = {**seed, "tuning": {"rows": dict.fromkeys((one for one in vars(RowRates())), 10**400)}}
    return [b"[" * 20_000, _machine_bytes(huge), _machine_bytes({"ceilings": {**seed["ceilings"], "l3": float("inf")}})]


# Kernels


def _kernel_bytes(body: bytes) -> bytes:
    return body + sha256(body).digest()


def _kernel_seeds() -> list[bytes]:
    key = _KERNEL.encode()
    return [_kernel_bytes(kernel_cache._MAGIC + len(key).to_bytes(4, "little") + key + b"\x7fELF code")]


def _kernel_found() -> list[bytes]:
    """A key that is said to be longer than the entry is."""
    return [_kernel_bytes(kernel_cache._MAGIC + b"\xff\xff\xff\x7f" + _KERNEL.encode())]


def _change_kernel(data: bytes, choice: random.Random) -> bytes:
    return _kernel_bytes(with_other_bytes(data[:-32], choice))


def _check_kernel(data: bytes, folder: Path) -> bool:
    """The code of this kernel, all of it, or nothing."""
    cache = KernelCache(folder / "kernels")
    assert cache.folder is not None
    write_private(Path(cache.folder) / kernel_cache._file_name(_KERNEL), data)
    found = cache.find(_KERNEL)
    key = _KERNEL.encode()
    if found is not None:
        assert data == _kernel_bytes(kernel_cache._MAGIC + len(key).to_bytes(4, "little") + key + found)
    return found is not None


TRUST_RECORD = Target(
    "trust_record", _trust_record_seeds, _check_trust_record, _change_trust_record, _trust_record_found
)
MACHINE = Target("machine", _machine_seeds, _check_machine, _change_machine, _machine_found)
KERNEL = Target("kernel", _kernel_seeds, _check_kernel, _change_kernel, _kernel_found)
