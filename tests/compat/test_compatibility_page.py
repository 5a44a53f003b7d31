import importlib
import importlib.util
import re
from pathlib import Path

import pytest

import sardonyx

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| (works|accepted without effect|absent) \|", PAGE.read_text(), re.MULTILINE)


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
    resolve(name)


@pytest.mark.parametrize("name", [name for name, state in ROWS if state == "absent"])
def test_what_the_page_calls_absent_is_absent(name):
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve(name)


def test_the_page_lists_every_public_name():
    listed = {name for name, _ in ROWS}
    assert set(sardonyx.__all__) - listed == {"__version__"}
    assert len(ROWS) > 200
