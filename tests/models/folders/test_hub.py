"""Models by their ids: only what is needed is fetched, the cache serves without the hub, and refusals are told.

The hub is a server of this file, which a process of its own asks: huggingface_hub reads its address once.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models.folders.hub import open_repository
from tests.models.folders.test_model_files import model, write

pytest.importorskip("huggingface_hub", reason="the extra `models-hf` is not installed")

COMMIT = "0" * 39 + "1"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "onnx/model.onnx": model("model.onnx_data").SerializeToString(),
    "onnx/model.onnx_data": np.ones(2, np.float32).tobytes(),
    "onnx/model_q4.onnx": model("other.bin").SerializeToString(),
    "onnx/other.bin": np.ones(2, np.float32).tobytes(),
    "pytorch_model.bin": b"large",
    "README.md": b"words",
}


class Hub(BaseHTTPRequestHandler):
    """A repository `some/model`, one that asks for consent, and nothing else."""

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/some/gated"):
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path.startswith("/api/models/some/model/revision/none"):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/models/some/broken"):
            self._answer(503, b"{}", {})
        elif path.startswith("/api/models/some/model/tree"):
            self._answer(200, json.dumps([self._entry(name) for name in FILES]).encode(), {})
        elif path.startswith("/api/models/some/model"):
            said = {"id": "some/model", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
            self._answer(200, json.dumps(said).encode(), {})
        elif path.startswith(f"/some/model/resolve/{COMMIT}/"):
            name = path.split(COMMIT + "/")[1]
            self.server.fetched.append(name)  # type: ignore[attr-defined]
            digest = hashlib.sha256(FILES[name]).hexdigest()
            self._answer(200, FILES[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'})
        else:
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _entry(self, name: str) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": len(FILES[name]), "oid": hashlib.sha1(FILES[name]).hexdigest()}

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.fetched = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import json, sys
from sardonyx import errors
from sardonyx.models.folders.hub import open_repository
told = []
for name, options, file_name in json.loads(sys.argv[1]):
    try:
        files = open_repository(name, cache_dir=sys.argv[2], **options)
        told.append(str(files.path(files.require("model", file_name))))
        files.folder()
    except errors.OnnxRuntimeError as error:
        told.append(f"{type(error).__name__}: {error.message}")
print(json.dumps(told))
"""


def ask(address: str, cache: Path, *questions: tuple[str, dict[str, Any], str | None], **more: str) -> list[str]:
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1", **more}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(questions), str(cache)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_hub(hub: Any, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{hub.server_port}"
    found = ask(
        address,
        tmp_path,
        ("some/model", {}, None),
        ("some/model", {"revision": "none"}, None),
        ("some/gated", {}, None),
        ("some/other", {}, None),
        ("some/broken", {}, None),
        ("no//name", {}, None),
        ("some/model", {}, "model_q8.onnx"),
        ("some/model", {}, "model_q4.onnx"),
    )
    assert found[0] == str(tmp_path / "models--some--model" / "snapshots" / COMMIT / "onnx" / "model.onnx")
    assert Path(found[0]).with_name("model.onnx_data").read_bytes() == FILES["onnx/model.onnx_data"]
    assert "has no revision 'none'" in found[1]
    assert found[2].startswith("Fail: The repository some/gated of the hub asks for consent")
    assert found[3].startswith("NoSuchFile: There is neither a folder some/other nor a repository of that id")
    assert found[4].startswith(
        "NoSuchFile: There is no folder some/broken, and the model some/broken is not in the cach"
    )
    assert "503" in found[4]
    assert found[5].startswith("InvalidArgument: 'no//name' is neither a folder nor an id")
    assert (
        "no file model_q8.onnx in the repository some/model of the hub. Its ONNX files are onnx/model.onnx" in found[6]
    )
    assert Path(found[7]).with_name("other.bin").exists()  # which only the model itself names
    wanted = {"config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model.onnx_data"}
    assert set(hub.fetched) == wanted | {"onnx/model_q4.onnx", "onnx/other.bin"}
    # Nobody answers any more: what the cache has is taken.
    hub.shutdown()
    hub.server_close()
    again = ask(address, tmp_path, ("some/model", {}, None), ("some/new", {}, None))
    assert again[0] == found[0]
    assert "the hub cannot be reached" in again[1]


def test_the_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--some--model"
    snapshot = write(repository / "snapshots" / COMMIT, {"config.json": {}, "model.onnx": None})
    with pytest.raises(errors.NoSuchFile, match=r"not in the cache .* at revision main: it has nothing of it.*local_f"):
        open_repository("some/model", cache_dir=tmp_path, local_files_only=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for options in ({}, {"revision": "main"}, {"revision": COMMIT}):
        files = open_repository("some/model", cache_dir=tmp_path, local_files_only=True, **options)
        assert files.path(files.require("model")) == snapshot / "model.onnx"
    with pytest.raises(errors.NoSuchFile, match=r"at revision v2: it has the revisions main\."):
        open_repository("some/model", cache_dir=tmp_path, local_files_only=True, revision="v2")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(errors.NoSuchFile, match="HF_HUB_OFFLINE is set"):
        open_repository("some/other", cache_dir=tmp_path)
    (snapshot / "model.onnx").unlink()
    write(repository, {"blobs/0123.incomplete": b"0"})
    files = open_repository("some/model", cache_dir=tmp_path)
    with pytest.raises(errors.NoSuchFile, match=r"no ONNX file for the model in the cache of .*0123\.incomplete"):
        files.require("model")
