#!/usr/bin/env bash
# A wheel that ships an ONNX model with external data, installed by uv and by pip.
# Guessed before the run: both give the same package, and its model loads.
#
# Seen with uv 0.13.9, pip's present version, onnx 1.23.2, onnxruntime 1.31.1 on Linux, cache and environment on one disk:
#   uv links each file of a package to its cache by a hard link; onnx.load refuses external data that has several hard
#   links (ValidationError), so that the model of an installed package does not load; after `pip install` it does;
#   onnxruntime loads it in both. `uv pip install --link-mode copy` gives what pip gives.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
export UV_CACHE_DIR=$folder/cache
python3 -m venv tools
tools/bin/pip install --quiet --disable-pip-version-check uv==0.13.9 onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6 \
  build==1.3.0 hatchling==1.27.0
mkdir -p src/shipped && touch src/shipped/__init__.py
tools/bin/python - <<'PY'
import numpy as np
import onnx.parser

model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> add (float[4] x) => (float[4] y) { y = Add(x, w) }'
)
model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
onnx.save_model(model, "src/shipped/model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
PY
cat > pyproject.toml <<'TOML'
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "shipped"
version = "1"
[tool.hatch.build.targets.wheel]
packages = ["src/shipped"]
TOML
tools/bin/python -m build --wheel --no-isolation --outdir dist . >/dev/null

look() {  # NAME FOLDER-OF-THE-ENVIRONMENT HARD-LINKS WHETHER-ONNX-LOADS
  shipped=$(dirname "$(find "$2" -name model.data)")
  tools/bin/python - "$1" "$shipped" "$3" "$4" <<'PY'
import os
import sys

import numpy as np
import onnx
import onnxruntime

name, folder, links, loads = sys.argv[1:]
found = os.stat(f"{folder}/model.data").st_nlink
try:
    onnx.load(f"{folder}/model.onnx")
    said = "loads"
except onnx.checker.ValidationError as error:
    said = str(error).partition(", but ")[2]
session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
result = session.run(None, {"x": np.ones(4, np.float32)})[0]
print(f"{name}: {found} hard links; onnx: {said}; onnxruntime: {result}")
assert found == int(links) and (said == "loads") == (loads == "yes") and (result == [1, 2, 3, 4]).all()
PY
}

for way in "uv 2 no" "uv-copy 1 yes" "pip 1 yes"; do
  set -- $way
  python3 -m venv "$1"
  case $1 in
    uv) tools/bin/uv pip install --quiet --python uv/bin/python dist/*.whl ;;
    uv-copy) tools/bin/uv pip install --quiet --link-mode copy --python uv-copy/bin/python dist/*.whl ;;
    pip) pip/bin/pip install --quiet --disable-pip-version-check dist/*.whl ;;
  esac
  look "$1" "$1" "$2" "$3"
done
