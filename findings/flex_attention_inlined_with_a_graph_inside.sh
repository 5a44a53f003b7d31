#!/usr/bin/env bash
# FlexAttention of ai.onnx.preview 1 whose score_mod holds an If, inlined by onnx's own inliner (onnx 1.23.2).
# Guessed before the run: a model that passes the full check passes it when its schema-defined functions are inlined.
#
# Seen: values of score_mod get new names where they are defined, and not where the branches of the If read them, so that
# the inlined model is refused by the checker and by the evaluator ("dbl is not output of any previous nodes"). The same
# score_mod without an If inlines to the results that the evaluator gives for the node itself.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6
env/bin/python - <<'PY'
import numpy as np
import onnx.checker
import onnx.inliner
import onnx.parser
from onnx.reference import ReferenceEvaluator

BRANCHES = "then_branch = t () => (float[a, b, c, d] p) { p = Identity(dbl) }, else_branch = e () => (float[a, b, c, d] n) { n = Neg(dbl) }"
ENDS = {"plain": "r = Identity(dbl)", "with an If": f"yes = Constant<value = bool {{1}}>() r = If(yes)<{BRANCHES}>"}
draw = np.random.default_rng(0)
feeds = {name: draw.standard_normal((1, 2, 3, 4)).astype(np.float32) for name in "qkv"}

for name, end in ENDS.items():
    model = onnx.parser.parse_model(f"""<ir_version: 13, opset_import: ["" : 24, "ai.onnx.preview" : 1]>
    attend (float[1, 2, 3, 4] q, float[1, 2, 3, 4] k, float[1, 2, 3, 4] v) => (float[1, 2, 3, 4] y) {{
      y = ai.onnx.preview.FlexAttention<score_mod = f (float[a, b, c, d] x) => (float[a, b, c, d] r) {{
        two = Constant<value = float {{2}}>() dbl = Mul(x, two) {end} }}>(q, k, v)
    }}""")
    onnx.checker.check_model(model, full_check=True)
    (right,) = ReferenceEvaluator(model).run(None, feeds)
    inlined = onnx.inliner.inline_selected_functions(
        model, [("ai.onnx.preview", "FlexAttention")], inline_schema_functions=True
    )
    try:
        onnx.checker.check_model(inlined, full_check=True)
        said = "passes"
    except onnx.checker.ValidationError as error:
        said = "refused: " + " ".join(str(error).split())[:90]
    print(f"score_mod {name}: {said}")
    if name == "plain":
        assert said == "passes" and np.allclose(ReferenceEvaluator(inlined).run(None, feeds)[0], right, atol=1e-5)
    else:
        assert "'dbl'" in said
PY
