#!/usr/bin/env bash
# torch 2.13.0 (dynamo exporter, opset 23), onnx 1.23.2: a boolean mask of scaled_dot_product_attention that is the same for
# all keys, (batch, 1, queries, 1), as one that hides whole queries is. Guessed before the run: the exporter expands it over
# the keys, as its opset 18 export does, or Attention broadcasts it as PyTorch does.
#
# Seen: it goes into Attention as it is. There a mask with one column is one that is too short, and keys beyond its end are
# hidden: all keys but the first are, without a word. Every row of ONNX's reference result is the first value; of PyTorch's
# it is a mean over all keys. The same export with opset 18 agrees with PyTorch.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6 torch==2.13.0 onnxscript==0.7.2
env/bin/python - 2>/dev/null <<'PY'
import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

torch.manual_seed(0)


class Attend(torch.nn.Module):
    def forward(self, query, key, value, mask):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


query, key, value = (torch.randn(1, 2, 4, 8) for _ in range(3))
mask = torch.ones(1, 1, 4, 1, dtype=torch.bool)
names = ["query", "key", "value", "mask"]
feeds = dict(zip(names, (one.numpy() for one in (query, key, value, mask))))
expected = Attend()(query, key, value, mask).numpy()
apart = {}
for opset in (18, 23):
    program = torch.onnx.export(
        Attend().eval(), (query, key, value, mask), dynamo=True, opset_version=opset, input_names=names, verbose=False
    )
    (found,) = ReferenceEvaluator(program.model_proto).run(None, feeds)
    apart[opset] = float(np.abs(found - expected).max())
    kinds = [node.op_type for node in program.model_proto.graph.node]
print("torch", torch.__version__, "| onnx", onnx.__version__, "| apart from PyTorch by opset", apart, "| nodes", kinds)
assert apart[18] < 1e-5, apart
assert "Attention" in kinds and np.abs(found - value[:, :, :1].numpy()).max() < 1e-5 < apart[23], apart
PY
