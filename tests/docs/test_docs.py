"""The documentation holds: links lead somewhere, examples run, commands exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from sardonyx.passes.base import Level
from sardonyx.passes.pipeline import passes_for_saving, passes_up_to

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".venv", "build", "dist", ".git"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not SKIPPED & set(path.relative_to(ROOT).parts) and path.stat().st_size
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
# A block that begins with ```python needs=NAME,NAME runs only if those packages are installed.
_PYTHON = re.compile(r"^```python(?: needs=([\w,]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MAKE = re.compile(r"\bmake ([a-z]+)\b")
_COMMAND = re.compile(r"^(?:\$ )?sardonyx ([a-z][a-z-]*)", re.MULTILINE)


MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
example (float[batch, 3] x) => (float[batch, 3] y) { y = Softmax(x) }
"""


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that headings get: lower case, words joined by hyphens."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(without_code(text))}


def test_there_is_documentation() -> None:
    assert {"README.md", "CHANGELOG.md", "docs/index.md", "docs/getting_started.md"} <= set(NAMES)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = page.read_text()
    for link in _LINK.findall(without_code(text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target.read_text()), f"{link}: no such heading"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _PYTHON.search(page.read_text())], ids=lambda page: str(page.relative_to(ROOT))
)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    """The Python examples of a page run one after the other, in a process of their own, beside a `model.onnx`.

    Those that need a package which is not installed are only compiled.
    """
    blocks = []
    for needs, block in _PYTHON.findall(page.read_text()):
        compile(block, str(page), "exec")
        if all(importlib.util.find_spec(name) for name in filter(None, needs.split(","))):
            blocks.append(block)
    assert blocks
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join(re.findall(r"`+([^`]+)`+", page.read_text()))
    assert set(_MAKE.findall(code)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_exist(page: Path) -> None:
    for block in re.findall(r"^```(?:console)?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for command in _COMMAND.findall(block):
            file = ROOT / "sardonyx" / "cli" / f"{command.replace('-', '_')}.py"
            assert file.exists(), f"there is no command sardonyx {command}"


def test_every_pass_is_described() -> None:
    text = (ROOT / "docs" / "rewrites.md").read_text(encoding="utf-8")
    every = (*passes_up_to(Level.ALL), *passes_for_saving())
    assert [one.name for one in every if one.name not in text] == []


def test_the_stages_of_the_architecture_lie_where_it_says() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("## The way of a model") : text.index("## Folders")]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE)[2:]
    assert len(rows) > 10
    for functions, places in rows:
        code = "\n".join((ROOT / "sardonyx" / place).read_text() for place in re.findall(r"`([\w/]+\.py)`", places))
        for name in re.findall(r"`([\w.]+)`", functions):
            assert re.search(rf"(def|class) {name.split('.')[-1]}\b", code), f"{places} has no {name}"


_FILE = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_of_the_project_exist(page: Path) -> None:
    """A page names a file from the root, its own folder, the package, or a folder of that."""
    roots = [ROOT, page.parent, ROOT / "sardonyx", *(ROOT / "sardonyx" / folder for folder in ("compiler", "ops"))]
    for name in _FILE.findall(page.read_text()):
        assert any((root / name).is_file() for root in roots), f"there is no {name}"
