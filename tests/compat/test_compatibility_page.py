import importlib
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import sardonyx
from tests.api.models import add_and_multiply

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
ROWS = re.findall(
    r"^\| `([\w.]+)` \| (works|accepted without effect|refused|absent) \|", PAGE.read_text(), re.MULTILINE
)


def resolve(name):
    """The object of a dotted name, importing modules as they are met."""
    found, path = sardonyx, "sardonyx"
    for part in name.split("."):
        path = f"{path}.{part}"
        if hasattr(found, "__path__") and importlib.util.find_spec(path):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", [name for name, state in ROWS if state != "absent"])
def test_what_the_page_lists_exists(name):
    *path, last = name.split(".")
    resolve(name)
    assert last in dir(resolve(".".join(path)) if path else sardonyx) or last in vars(sardonyx)


@pytest.mark.parametrize("name", [name for name, state in ROWS if state == "absent"])
def test_what_the_page_calls_absent_is_absent(name):
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve(name)


def test_the_page_lists_every_public_name():
    listed = {name for name, _ in ROWS}
    assert set(sardonyx.__all__) - listed == {"__version__"}
    assert len(ROWS) > 200


# What onnxruntime has for C and C++ alone.
OF_THE_C_API = {
    "set_custom_create_thread_fn",
    "set_custom_join_thread_fn",
    "set_custom_thread_creation_options",
}


def public_members(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_the_page_lists_every_member_of_the_options(name):
    listed = {row.partition(".")[2] for row, _ in ROWS if row.startswith(f"{name}.")}
    assert listed == public_members(getattr(sardonyx, name))
    theirs = pytest.importorskip("onnxruntime")
    assert listed - OF_THE_C_API == public_members(getattr(theirs, name))


def test_the_link_to_the_config_keys_leads_to_their_table():
    assert "(session.md#config-keys)" in PAGE.read_text()
    assert "\n## Config keys\n" in (PAGE.parent / "session.md").read_text()


def test_properties_of_execution_leave_the_results_alone():
    """A value that is not the default reads back and changes no result, whether it has an effect otherwise or none."""
    effective = {
        *("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order"),
        *("inter_op_num_threads", "intra_op_num_threads"),
    }
    values = {
        "enable_cpu_mem_arena": False,
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
        "execution_mode": sardonyx.ExecutionMode.ORT_PARALLEL,
        "execution_order": sardonyx.ExecutionOrder.PRIORITY_BASED,
        "inter_op_num_threads": 3,
        "intra_op_num_threads": 3,
        "log_verbosity_level": 1,
        "use_deterministic_compute": True,
    }
    options = sardonyx.SessionOptions()
    for name, value in values.items():
        assert (f"SessionOptions.{name}", "works" if name in effective else "accepted without effect") in ROWS
        setattr(options, name, value)
        assert getattr(options, name) == value
    session = sardonyx.InferenceSession(add_and_multiply(), options)
    assert session.run(None, {"x": np.full((1, 3), 3, np.float32)})[1].tolist() == [[9, 9, 9]]


def test_run_config_keys_of_the_page_are_taken():
    section = PAGE.read_text().partition("\n## RunOptions\n")[2].partition("\n## ")[0]
    keys = re.findall(r"^\| `([\w.]+)` \| (?!works \||accepted)", section, re.MULTILINE)
    assert {"memory.enable_memory_arena_shrinkage", "gpu_graph_id"} < set(keys)
    options = sardonyx.RunOptions()
    for key in keys:
        options.add_run_config_entry(key, "cpu:0" if key.startswith("memory.") else "0")
    session = sardonyx.InferenceSession(add_and_multiply())
    assert session.run(["y"], {"x": np.ones((1, 3), np.float32)}, options)[0].tolist() == [[2, 2, 2]]
