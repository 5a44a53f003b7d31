"""What the rounds of Loop and Scan cost: small bodies, against onnxruntime.

    python -m benchmarks.loops [--threads 1]

Best of many runs in turns. `round` is the time of one more round: the difference between the last two counts.
"""

from __future__ import annotations

import argparse

import numpy as np
from onnx import parser

from benchmarks.kernels.recurrent import best

COUNTS = (1, 100, 1000)
SIZE = 16

BODIES = {
    "Loop of an Add": """loop (float[n] x, int64 m) => (float[n] y)
        { go = Constant<value = bool {1}>()
          y = Loop(m, go, x)<body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w)
              { one = Constant<value_float = 1.0>() d = Identity(c) w = Add(v, one) }> }""",
    "Loop with a scan output": """loop (float[n] x, int64 m) => (float[n] y, float[k, n] s)
        { go = Constant<value = bool {1}>()
          y, s = Loop(m, go, x)<body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] z)
              { one = Constant<value_float = 1.0>() d = Identity(c) w = Add(v, one) z = Mul(w, w) }> }""",
    "Loop while less": """loop (float[n] x, int64 m) => (float[n] y)
        { go = Constant<value = bool {1}>()
          y = Loop(m, go, x)<body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w)
              { one = Constant<value_float = 1.0>() most = Constant<value_float = 1e9>()
                w = Add(v, one) top = ReduceMax<keepdims = 0>(w) d = Less(top, most) }> }""",
    "Scan of an Add and a Mul": """scan (float[n] x, float[m, n] q) => (float[n] y, float[m, n] s)
        { y, s = Scan<num_scan_inputs = 1, body = b (float[n] v, float[n] e) => (float[n] w, float[n] z)
              { w = Add(v, e) z = Mul(w, e) }>(x, q) }""",
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--threads", type=int, default=1)
    threads = arguments.parse_args().threads
    print(f"{'body':26} {'rounds':>6} {'ours us':>9} {'ORT us':>9} {'ratio':>6}")
    for name, text in BODIES.items():
        model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text).SerializeToString()
        times = []
        for count in COUNTS:
            feeds = {"x": np.ones(SIZE, np.float32)}
            feeds |= {"q": np.ones((count, SIZE), np.float32)} if "q)" in text else {"m": np.array(count)}
            times.append(best(model, feeds, threads)[0])
            mine, other = times[-1]
            print(f"{name:26} {count:6} {mine * 1e6:9.1f} {other * 1e6:9.1f} {other / mine:6.2f}")
        more = COUNTS[-1] - COUNTS[-2]
        mine, other = ((after - before) / more for after, before in zip(times[-1], times[-2], strict=True))
        print(f"{name:26} {'round':>6} {mine * 1e6:9.3f} {other * 1e6:9.3f} {other / mine:6.2f}")


if __name__ == "__main__":
    main()
