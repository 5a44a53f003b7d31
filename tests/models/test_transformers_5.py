"""The tests of classes and pipelines once more, with transformers 5 in the place of the environment's.

`make test` installs it into a folder of its own, which a process with these tests has in front of its path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.tasks.conftest import GENERATORS, Generators
from tests.models.tiny_models import MODELS, VARIABLE, Folders

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / "build" / "transformers5"
# What is tested with both.
PATHS = [
    "tests/models/tasks",
    "tests/models/test_arrays.py",
    "tests/models/test_base.py",
    "tests/models/folders/test_hub.py",
]

pytestmark = pytest.mark.xdist_group("tiny_models")


def test_the_same_with_transformers_5(tiny: Folders) -> None:
    if not (INSTALLED / "transformers").is_dir():
        pytest.skip(f"transformers 5 is not installed in {INSTALLED}: `make test` does that")
    for task in MODELS:
        tiny(task)
    generators = Generators(tiny.root / "generators")
    for name in GENERATORS:
        generators.folder(name)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join([str(INSTALLED), str(ROOT)]),
        VARIABLE: str(tiny.root),
    }
    check = "import transformers; assert transformers.__version__.startswith('5.'), transformers.__version__"
    subprocess.run([sys.executable, "-c", check], env=environment, cwd=ROOT, check=True, timeout=300)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *PATHS],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1]
