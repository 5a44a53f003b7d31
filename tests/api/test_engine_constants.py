"""Weights that an engine holds packed are not packed again where a session of it compiles its model after all."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import sardonyx as ort
from sardonyx.api.engines import compiled_engine, engine_keeper, engine_store, kept_engine, kept_sizes, shape_profiles
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.api.engines.engine_store import wants_sizes
from sardonyx.compiler import binding
from sardonyx.compiler.shared_constants import LEAST_BYTES
from sardonyx.runtime import file_state
from tests.api.engine_models import is_stored, keeps_every_engine, wait

# Sizes of a first session, and of a later one which its engine has no plan for.
SIZE, OTHER = 7, 33

_MODELS = {
    "products": (
        "float[n, 160] x",
        "float[n, 96] y",
        "h = MatMul(x, a)  r = Relu(h)  y = MatMul(r, b)",
        {"a": (160, 192), "b": (192, 96)},
    ),
    "convolution": (
        "float[1, 48, n, 20] x",
        "float[1, 64, n, 20] y",
        "y = Conv<pads=[1, 1, 1, 1]>(x, a)",
        {"a": (64, 48, 3, 3)},
    ),
    "recurrent": (
        "float[n, 2, 64] x",
        "float[n, 1, 2, 96] y",
        "y = GRU<hidden_size=96>(x, a, b)",
        {"a": (1, 288, 64), "b": (1, 288, 96)},
    ),
    "integers": (
        "float[n, 256] x",
        "float[n, 320] y",
        "q, s, z = DynamicQuantizeLinear(x)  h = MatMulInteger(q, a, z)  f = Cast<to=1>(h)  y = Mul(f, s)",
        {"a": (256, 320)},
    ),
}


@pytest.fixture(autouse=True)
def _engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_engine(tmp_path / "cache", monkeypatch)


class Packed:
    """Counts the bytes of what is packed of weights that are large enough to be told from others; numbers that are
    found of them, such as how many are out of bounds, are none."""

    nbytes = 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pack = binding._made

        def counted(given: binding.Tensor, make: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
            made = pack(given, make)
            self.nbytes += made.nbytes if given.nbytes >= LEAST_BYTES and made.size > 1 else 0
            return made

        monkeypatch.setattr(binding, "_made", counted)

    def since(self) -> int:
        """The bytes since this was last asked; sessions that nobody has any more are gone."""
        found, self.nbytes = self.nbytes, 0
        gc.collect()
        return found


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> Packed:
    return Packed(monkeypatch)


def write(path: Path, kind: str, seed: int = 0, external: str = "") -> None:
    given, made, nodes, shapes = _MODELS[kind]
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g ({given}) => ({made}) {{ {nodes} }}')
    chance = np.random.default_rng(seed)
    for name, shape in shapes.items():
        whole = kind == "integers"
        array = chance.integers(-100, 100, shape, np.int8) if whole else chance.standard_normal(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    if external:
        onnx.save_model(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)


def session(path: Path, **entries: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for key, value in entries.items():
        options.add_session_config_entry(f"sardonyx.{key}", value)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds(made: ort.InferenceSession, size: int) -> dict[str, np.ndarray]:
    (given,) = made.get_inputs()
    shape = [one if isinstance(one, int) else size for one in given.shape]
    return {given.name: np.random.default_rng(size).standard_normal(shape, np.float32)}


def without_engine(path: Path, size: int) -> np.ndarray:
    made = session(path, engine_cache="0")
    return made.run(None, feeds(made, size))[0]


def keep(path: Path) -> None:
    made = session(path)
    assert not is_stored(made)
    made.run(None, feeds(made, SIZE))
    wait()


@pytest.mark.parametrize("external", ["", "weights"])
@pytest.mark.parametrize("kind", list(_MODELS))
def test_a_new_size_packs_nothing_again(tmp_path: Path, packed: Packed, kind: str, external: str) -> None:
    path = tmp_path / "model.onnx"
    write(path, kind, external=external)
    keep(path)
    assert packed.since() >= LEAST_BYTES  # there is something to pack
    wanted = [without_engine(path, size) for size in (SIZE, OTHER)]
    packed.since()
    for size in (OTHER, OTHER + 20):  # the second engine is one that such a session has written
        made = session(path)
        assert is_stored(made)
        np.testing.assert_array_equal(made.run(None, feeds(made, SIZE))[0], wanted[0])
        found = made.run(None, feeds(made, size))[0]
        if size == OTHER:
            np.testing.assert_array_equal(found, wanted[1])
        wait()
        del made
        assert packed.since() == 0


def test_plans_in_the_background_pack_nothing_again(
    tmp_path: Path, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    write(path, "products")
    keep(path)
    packed.since()
    for module in (engine_keeper, kept_engine):
        monkeypatch.setattr(module, "wants_sizes", wants_sizes)
        monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(kept_sizes, "BUSY_REST", 0.0)
    monkeypatch.setattr(kept_sizes, "_LENGTHS", 20)
    made = session(path)
    assert is_stored(made)
    made.run(None, feeds(made, SIZE))
    made.run(None, feeds(made, OTHER))
    wait()
    del made
    assert packed.since() == 0
    other = session(path)
    other.run(None, feeds(other, 11))
    assert sum(one.count for one in other._session().waits) == 0  # there are plans for it


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine that is passed on, whose file has been there for a while."""
    write(tmp_path / "model.onnx", "products")
    profile = shape_profiles.parse("x:7x160,7x160,7x160")
    compile_engine(str(tmp_path / "model.onnx"), tmp_path / "model.engine", profiles=[profile])
    return tmp_path / "model.engine"


def test_engines_that_are_passed_on_pack_nothing_again(tmp_path: Path, engine: Path, packed: Packed) -> None:
    wanted = without_engine(tmp_path / "model.onnx", OTHER)
    packed.since()
    made = session(engine)
    assert is_stored(made)
    np.testing.assert_array_equal(made.run(None, feeds(made, OTHER))[0], wanted)
    del made
    assert packed.since() == 0


def test_those_of_another_state_of_the_package_are_packed(
    tmp_path: Path, engine: Path, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys may mean something else, even where its kernels are the same."""
    wanted = without_engine(tmp_path / "model.onnx", OTHER)
    packed.since()
    monkeypatch.setattr(compiled_engine, "package_state", lambda: "another one")
    made = session(engine)
    assert is_stored(made)
    np.testing.assert_array_equal(made.run(None, feeds(made, OTHER))[0], wanted)
    assert packed.since() >= LEAST_BYTES


def test_weights_that_changed_are_packed(tmp_path: Path, packed: Packed) -> None:
    """Never those of the file that had the name before, nor those of another model with the same shapes."""
    path = tmp_path / "model.onnx"
    write(path, "products")
    keep(path)
    path.unlink()
    write(path, "products", seed=1)
    wanted = without_engine(path, OTHER)
    packed.since()
    made = session(path)
    np.testing.assert_array_equal(made.run(None, feeds(made, OTHER))[0], wanted)
    assert packed.since() >= LEAST_BYTES


def test_an_engine_offers_its_constants_to_its_own_session_alone(tmp_path: Path, packed: Packed) -> None:
    """Also where another model has the same weights."""
    first, second = tmp_path / "model.onnx", tmp_path / "second.onnx"
    write(first, "products")
    keep(first)
    write(second, "products")
    made = session(first)
    assert is_stored(made)
    made.run(None, feeds(made, SIZE))
    packed.since()
    keep(second)
    assert packed.since() >= LEAST_BYTES


def test_young_files_are_told_by_their_contents(
    tmp_path: Path, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has just changed has no state to go by when it is mapped; its engine offers them all the same."""
    path = tmp_path / "model.onnx"
    write(path, "products")
    monkeypatch.setattr(file_state, "SETTLED_SECONDS", 3600.0)
    monkeypatch.setattr(engine_store, "is_settled", lambda state, at: True)
    keep(path)
    packed.since()
    made = session(path)
    assert is_stored(made)
    made.run(None, feeds(made, OTHER))
    del made
    assert packed.since() == 0
