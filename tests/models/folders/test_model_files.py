"""The files of a model in folders, as each program lays them out, and what is said of those that are missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import errors
from sardonyx.models.folders.model_files import ModelFiles
from sardonyx.models.folders.opening import open_files


def write(folder: Path, files: dict[str, Any]) -> Path:
    """A folder with these files: bytes, objects as JSON, or None for a model without weights."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            onnx.save(model(), path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(json.dumps(content))
    return folder


def model(location: str | None = None) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    nodes, weights = [helper.make_node("Identity", ["x"], ["y"])], []
    if location is not None:
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        nodes, weights = [helper.make_node("Add", ["x", "w"], ["y"])], [tensor]
    x, y = value("x", TensorProto.FLOAT, [2]), value("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_folder_of_transformers_js(tmp_path: Path) -> None:
    files = ModelFiles.of_folder(
        write(tmp_path, {"config.json": {}, "onnx/model.onnx": None, "onnx/model_quantized.onnx": None})
    )
    assert files.require("model") == "onnx/model.onnx"
    assert files.path("onnx/model.onnx") == tmp_path / "onnx" / "model.onnx"
    assert files.find_name("config.json") == "config.json"
    inner = ModelFiles.of_folder(tmp_path, "onnx")
    assert inner.require("model", "model_quantized.onnx") == "onnx/model_quantized.onnx"
    assert inner.find_name("config.json") == "config.json"  # of the root, as the subfolder has none


def test_a_folder_of_genai(tmp_path: Path) -> None:
    config = {"model": {"type": "llama", "decoder": {"filename": "llama.onnx"}, "encoder": {"filename": "enc.onnx"}}}
    files = ModelFiles.of_folder(
        write(tmp_path, {"genai_config.json": config, "llama.onnx": None, "enc.onnx": None, "other.onnx": None})
    )
    assert [files.find(role) for role in ("model", "decoder", "encoder")] == ["llama.onnx", "llama.onnx", "enc.onnx"]
    (tmp_path / "llama.onnx").unlink()
    with pytest.raises(errors.NoSuchFile, match=r"no file llama\.onnx.*enc\.onnx, other\.onnx"):
        ModelFiles.of_folder(tmp_path).find("decoder")


def test_a_folder_of_sentence_transformers(tmp_path: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling"}]
    files = ModelFiles.of_folder(
        write(
            tmp_path,
            {
                "modules.json": modules,
                "0_Transformer/config.json": {},
                "1_Pooling/config.json": {},
                "onnx/model_qint8_avx512_vnni.onnx": None,
            },
        )
    )
    assert files.find_name("config.json") == "0_Transformer/config.json"
    assert files.require("model") == "onnx/model_qint8_avx512_vnni.onnx"
    write(tmp_path, {"modules.json": {"path": 1}})
    with pytest.raises(errors.Fail, match="no list of modules"):
        ModelFiles.of_folder(tmp_path).find_name("config.json")


def test_missing_models_are_told_with_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, "tokenizer.json": {}})
    with pytest.raises(errors.NoSuchFile, match=r"no ONNX file for the model in the folder .*config.json, tok"):
        ModelFiles.of_folder(tmp_path).require("model")
    write(tmp_path, {"encoder_model.onnx": None, ".cache/huggingface/download/xyz.incomplete": b"0"})
    with pytest.raises(errors.NoSuchFile, match=r"for the decoder of the model .*are encoder_model\.onnx.*xyz\.incomp"):
        ModelFiles.of_folder(tmp_path).require("decoder")
    (tmp_path / "sub").mkdir()
    with pytest.raises(errors.NoSuchFile, match=r"in sub of the folder .*elsewhere are encoder_model\.onnx"):
        ModelFiles.of_folder(tmp_path, "sub").require("model")
    with pytest.raises(errors.NoSuchFile, match=r"no folder onnx in .*its folders are .*sub"):
        ModelFiles.of_folder(tmp_path, "onnx")


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model("weights.bin").SerializeToString())
    with pytest.raises(errors.NoSuchFile, match=r"in the file weights\.bin, which is not beside it.*model\.onnx"):
        ModelFiles.of_folder(tmp_path).path("model.onnx")
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    (tmp_path / "weights.bin").write_bytes(pointer)
    with pytest.raises(errors.Fail, match=r"weights\.bin is not the file.*Git LFS"):
        ModelFiles.of_folder(tmp_path).path("model.onnx")
    (tmp_path / "weights.bin").write_bytes(np.ones(2, np.float32).tobytes())
    assert ModelFiles.of_folder(tmp_path).path("model.onnx") == path


def test_hostile_locations_are_left_to_the_session(tmp_path: Path) -> None:
    """Nothing outside of the folder is looked at, and nothing waits for a pipe."""
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(tmp_path / "outside")
    for location in ("../outside", str(tmp_path / "outside")):
        (folder / "model.onnx").write_bytes(model(location).SerializeToString())
        assert ModelFiles.of_folder(folder).path("model.onnx") == folder / "model.onnx"
    os.mkfifo(folder / "pipe")
    (folder / "model.onnx").write_bytes(model("pipe").SerializeToString())
    with pytest.raises(errors.Fail, match="pipe cannot be read"):
        ModelFiles.of_folder(folder).path("model.onnx")


def test_weights_to_export(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}})
    with pytest.raises(errors.NoSuchFile, match=r"no weights of a PyTorch model in the folder .*config\.json"):
        ModelFiles.of_folder(tmp_path).weights_folder()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(8)
    write(tmp_path, {"model-1.safetensors": whole[:-1]})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    write(tmp_path, {"model.safetensors.index.json": index})
    with pytest.raises(errors.NoSuchFile, match=r"names the files model-2\.safetensors, which are not there"):
        ModelFiles.of_folder(tmp_path).weights_folder()
    write(tmp_path, {"model-2.safetensors": whole})
    with pytest.raises(errors.Fail, match=r"model-1\.safetensors is cut off"):
        ModelFiles.of_folder(tmp_path).weights_folder()
    write(tmp_path, {"model-1.safetensors": whole})
    assert ModelFiles.of_folder(tmp_path).weights_folder() == tmp_path


def test_what_is_no_json(tmp_path: Path) -> None:
    files = ModelFiles.of_folder(write(tmp_path, {"config.json": b'{"model_type": "be', "list.json": [1]}))
    with pytest.raises(errors.Fail, match=r"config\.json cannot be read as JSON"):
        files.read_json("config.json")
    with pytest.raises(errors.Fail, match="holds no JSON object, but list"):
        files.read_json("list.json")
    (tmp_path / "config.json").write_bytes(b"[" * 200_000)
    with pytest.raises(errors.Fail, match=r"config\.json cannot be read as JSON"):
        files.read_json("config.json")
    with open(tmp_path / "config.json", "wb") as file:
        file.write(b"[ ")
        file.truncate(65 << 20)
    with pytest.raises(errors.Fail, match="too large for a config"):
        files.read_json("config.json")


def test_links_to_folders(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", {"config.json": {}})
    write(tmp_path / "elsewhere", {"model.onnx": None})
    os.symlink(tmp_path / "elsewhere", folder / "onnx")
    os.symlink(folder, folder / "circle")
    assert ModelFiles.of_folder(folder).require("model") == "onnx/model.onnx"


def test_names_of_models(tmp_path: Path) -> None:
    write(tmp_path, {"model/model.onnx": None, "model/model_fp16.onnx": None, "weights.bin": b"0"})
    files, named = open_files(tmp_path / "model" / "model_fp16.onnx")
    assert (files.names, named) == (("model.onnx", "model_fp16.onnx"), "model_fp16.onnx")
    assert open_files(str(tmp_path / "model"))[1] is None
    with pytest.raises(errors.NoSuchFile, match=r"no folder .*modell\. Did you mean model"):
        open_files(tmp_path / "modell")
    for name in ("./none", "a/b/c", "/none", "~/none/of/this"):
        with pytest.raises(errors.NoSuchFile, match="There is no folder"):
            open_files(name)
    for name in ("", "a\0b", None, 3):
        with pytest.raises(errors.InvalidArgument, match="path"):
            open_files(name)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match=r"weights\.bin is a file and no ONNX model: name the folder"):
        open_files(tmp_path / "weights.bin")
