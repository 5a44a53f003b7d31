#!/usr/bin/env bash
# numpy.save and numpy.load of arrays whose types are ml_dtypes' (ml_dtypes 0.6.0, numpy 2.4.6).
# Guessed before the run: all of these types are alike: each comes back as itself, or each as bytes without a type.
#
# Seen: bfloat16, float8_e4m3fn, float8_e8m0fnu, int4 and others come back as raw bytes (|V1, |V2), which a view makes right
# again; float8_e5m2 alone is written with the type '<f1', which numpy.load refuses: the file can be read by no means but
# by hand.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
env/bin/python - <<'PY'
import io

import ml_dtypes
import numpy as np

for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
             "float6_e2m3fn", "float4_e2m1fn", "int4", "uint2"):
    kind = np.dtype(getattr(ml_dtypes, name))
    array = np.array([1, 2, 1], np.float32).astype(kind)
    file = io.BytesIO()
    np.save(file, array)
    header = file.getvalue()[10:].split(b"'descr': ")[1].split(b",")[0].decode()
    file.seek(0)
    try:
        loaded = np.load(file)
        said = f"loads as {loaded.dtype}"
        assert np.array_equal(loaded.view(kind).astype(np.float32), array.astype(np.float32))
    except ValueError as error:
        said = f"refused: {error}"
    print(f"{name}: written as {header}, {said}")
    assert said.startswith("refused") == (name == "float8_e5m2"), name
PY
