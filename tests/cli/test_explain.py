"""`sardonyx explain`: its rows speak of the user's nodes, and every step, reason and rewrite is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx
from sardonyx import errors
from sardonyx.api.explaining.explanation import Row, abbreviated, explain
from sardonyx.cli.explain import joined, lines
from sardonyx.tuning import ceilings
from sardonyx.tuning.ceilings import Ceilings
from tests.cli.conftest import Command

RATES = Ceilings(
    {1: {"f32": 100.0, "f64": 50.0}, 2: {"f32": 200.0, "f64": 100.0}},
    {1: {"L2": 100.0, "L3": 50.0, "DRAM": 10.0}, 2: {"L2": 200.0, "L3": 60.0, "DRAM": 12.0}},
    l2=1 << 20,
    l3=1 << 25,
)


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a machine that nobody has to measure."""
    monkeypatch.setattr(ceilings, "stored_ceilings", lambda threads: RATES)


def saved(
    path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: list[str], constants: dict[str, Any]
) -> Path:
    """A model of float tensors; `inputs` gives their shapes."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture
def block(tmp_path: Path) -> Path:
    """GELU(data @ weight + bias), GELU as torch writes it, under names of a block."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["data", "weight"], ["product"], name="/block/dense/MatMul"),
        helper.make_node("Add", ["bias", "product"], ["sum"], name="/block/dense/Add"),
        helper.make_node("Div", ["sum", "root"], ["scaled"], name="/block/act/Div"),
        helper.make_node("Erf", ["scaled"], ["erf"], name="/block/act/Erf"),
        helper.make_node("Add", ["erf", "one"], ["more"], name="/block/act/Add"),
        helper.make_node("Mul", ["sum", "more"], ["twice"], name="/block/act/Mul"),
        helper.make_node("Mul", ["twice", "half"], ["result"], name="/block/act/Mul_1"),
    ]
    constants = {
        "weight": rng.standard_normal((8, 32)).astype(np.float32),
        "bias": rng.standard_normal(32).astype(np.float32),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    return saved(tmp_path / "block.onnx", nodes, {"data": ["rows", 8]}, ["result"], constants)


def explained(command: Command, *arguments: object) -> dict[str, Any]:
    outcome = command("explain", *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report: dict[str, Any] = json.loads(outcome.out)
    return report


def test_a_fused_kernel_names_its_nodes_and_rules(command: Command, block: Path) -> None:
    report = explained(command, block, "--dim", "rows=6", "--threads", 1)
    assert report["inputs"] == {"data": [6, 8]}
    (row,) = report["rows"]
    assert (row["kind"], row["kernel"]) == ("native", "gemm MatMul")
    assert row["epilogue"] == ["bias", "gelu"]
    assert set(row["nodes"]) == {
        *("/block/dense/MatMul", "/block/dense/Add", "/block/act/Div", "/block/act/Erf"),
        *("/block/act/Add", "/block/act/Mul", "/block/act/Mul_1"),
    }
    assert row["rules"] == ["GeluFusionL2"]
    assert row["detail"].startswith("6x8x32 f32, tile ")
    assert row["flops"] == 2 * 6 * 8 * 32
    assert row["measured_us"] is row["gflops"] is row["roofline"] is None
    assert report["rewrites"]["GeluFusionL2"] == 1


def test_bytes_are_those_read_and_written(command: Command, block: Path) -> None:
    """Data, packed weights, bias and result; packed columns are filled up to whole panels."""
    report = explained(command, block, "--dim", "rows=6", "--threads", 1)
    (row,) = report["rows"]
    least = 4 * (6 * 8 + 8 * 32 + 32 + 6 * 32)
    assert least <= row["bytes"] <= least + 4 * 8 * 32
    assert 4 * (8 * 32 + 32) <= row["constant_bytes"] < row["bytes"]
    assert report["constant_bytes"] == row["constant_bytes"]
    assert 4 * 8 * 32 <= report["packed_bytes"] < report["constant_bytes"]


def test_the_prediction_is_what_the_ceilings_allow(command: Command, block: Path) -> None:
    report = explained(command, block, "--dim", "rows=6", "--threads", 1)
    (row,) = report["rows"]
    computed, moved = row["flops"] / 100e9, row["bytes"] / 100e9  # everything stays in the second cache
    assert row["predicted_us"] == pytest.approx(max(computed, moved) * 1e6)
    assert report["totals"]["predicted_us"] == pytest.approx(row["predicted_us"])


def test_run_measures_every_step(command: Command, block: Path) -> None:
    report = explained(command, block, "--dim", "rows=300", "--run", "--repeat", 4)
    assert report["runs"] == 4
    assert report["run_us"] > 0
    (row,) = report["rows"]
    assert row["measured_us"] > 0
    assert row["gflops"] == pytest.approx(row["flops"] / row["measured_us"] / 1e3)
    assert row["roofline"] == pytest.approx(row["predicted_us"] / row["measured_us"])
    assert report["totals"]["measured_us"] == pytest.approx(row["measured_us"])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A view, a value known from shapes, kernels, one whose result's size depends on data, and random numbers, which
    have none; kernels read their result."""
    nodes = [
        helper.make_node("Neg", ["data"], ["less"], name="negate"),
        helper.make_node("Transpose", ["less"], ["turned"], name="turn"),
        helper.make_node("Unique", ["turned"], ["unique"], name="once", axis=0),
        helper.make_node("RandomNormalLike", ["unique"], ["noise"], name="only"),
        helper.make_node("Exp", ["noise"], ["result"], name="grow"),
        helper.make_node("Shape", ["data"], ["shape"], name="sizes"),
        helper.make_node("Reshape", ["turned", "shape"], ["back"], name="again"),
        helper.make_node("Abs", ["back"], ["other"], name="positive"),
    ]
    return saved(tmp_path / "mixed.onnx", nodes, {"data": ["rows", "columns"]}, ["result", "other"], {})


def test_host_steps_have_a_reason(command: Command, mixed: Path) -> None:
    report = explained(command, mixed, "--dim", "rows=2", "--dim", "columns=3")
    host = [row for row in report["rows"] if row["kind"] == "host"]
    (drawn,) = host
    assert drawn["kernel"] == "host RandomNormalLike"
    assert drawn["nodes"] == ["only"]
    assert drawn["reason"]
    assert report["views"] == {"Transpose": 1, "Reshape": 1}
    assert report["known"] == {"Shape": 1}
    native = [name for row in report["rows"] if row["kind"] == "native" for name in row["nodes"]]
    assert {"negate", "positive", "once", "grow"}.issubset(native)
    shown = command("explain", mixed, "--dim", "rows=2", "--dim", "columns=3").out
    assert "host RandomNormalLike" in shown
    assert drawn["reason"] in " ".join(shown.split())


def test_steps_behind_data_dependent_shapes_are_timed_as_well(command: Command, mixed: Path) -> None:
    report = explained(command, mixed, "--dim", "rows=40", "--dim", "columns=30", "--run", "--repeat", 3)
    assert [row["step"] for row in report["rows"]] == list(range(len(report["rows"])))
    assert all(row["measured_us"] >= 0 for row in report["rows"])
    assert sum(row["measured_us"] for row in report["rows"] if row["kind"] == "host") > 0


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """A loop of five turns, each of which squares the value and, never taken, finds unique elements."""

    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)])

    scalar = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("go", 9))]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"], name="on"),
            helper.make_node("Mul", ["value", "value"], ["square"], name="multiply"),
            helper.make_node(
                "If",
                ["never"],
                ["next"],
                name="choose",
                then_branch=branch("rare", helper.make_node("Unique", ["square"], ["chosen"], name="only")),
                else_branch=branch("usual", helper.make_node("Abs", ["square"], ["chosen"], name="positive")),
            ),
        ],
        "body",
        [*scalar, helper.make_tensor_value_info("value", TensorProto.FLOAT, ["n"])],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("ReduceMax", ["data"], ["most"], name="peak", keepdims=0),
        helper.make_node("IsNaN", ["most"], ["never"], name="ask"),
        helper.make_node("Loop", ["five", "", "data"], ["result"], name="repeat", body=body),
    ]
    return saved(tmp_path / "repeated.onnx", nodes, {"data": ["n"]}, ["result"], {"five": np.int64(5)})


def test_steps_inside_subgraphs_say_where_they_are(command: Command, repeated: Path) -> None:
    report = explained(command, repeated, "--dim", "n=64", "--run", "--repeat", 4)
    rows = {row["nodes"][0]: row for row in report["rows"]}
    loop, square, choice, rare, usual = (rows[name] for name in ("repeat", "multiply", "choose", "only", "positive"))
    assert (loop["body"], loop["executions"]) == ("", 1)
    assert (square["body"], square["executions"]) == ("repeat/body/", 5)
    assert (choice["kind"], choice["body"], choice["executions"]) == ("host", "repeat/body/", 5)
    assert (rare["kind"], rare["body"], rare["executions"]) == ("native", "repeat/body/choose/then_branch/", 0)
    assert not rare["reason"]
    assert (usual["body"], usual["executions"]) == ("repeat/body/choose/else_branch/", 5)
    outer = sum(row["measured_us"] for row in report["rows"] if not row["body"])
    assert report["totals"]["measured_us"] == pytest.approx(outer)
    assert report["totals"]["flops"] == sum(row["flops"] * row["executions"] for row in report["rows"])
    shown = command("explain", repeated, "--dim", "n=64").out
    assert "in repeat/body/: multiply" in shown


def test_shapes_alone_explain_what_they_decide(block: Path, mixed: Path) -> None:
    found = explain(sardonyx.InferenceSession(str(block)), shapes={"data": (3, 8)})
    assert found.rows[0].detail.startswith("3x8x32")
    session = sardonyx.InferenceSession(str(mixed))
    with pytest.raises(errors.InvalidArgument, match="feeds"):
        explain(session, shapes={"data": (3, 8)})
    with pytest.raises(errors.InvalidArgument, match="feeds"):
        explain(session, shapes={"data": (3, 8)}, runs=1)


@pytest.fixture
def nameless(tmp_path: Path) -> Path:
    """The second size of `sound` has no name and is 4 at least; behind an If no rank is known without it."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, ?] sound, int64 rate) => (y) {
        ends = Constant <value_ints = [0, 3, 0, 3]> ()
        padded = Pad <mode = "reflect"> (sound, ends)
        shape = Shape (padded)
        one = Constant <value_ints = [1]> ()
        length = Gather (shape, one)
        short = Constant <value_ints = [10]> ()
        is_short = Equal (length, short)
        flat = If (is_short) <
            then_branch = yes () => (float[a, e, f] deep) { deep = Unsqueeze (padded, one) },
            else_branch = no () => (float[b, d] same) { same = Identity (padded) }>
        real = Cast <to = 1> (rate)
        y = Mul (flat, real)
    }"""
    made = parser.parse_model(text)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    path = tmp_path / "nameless.onnx"
    onnx.save(made, path)
    return path


def test_sizes_that_nobody_gave_are_named_where_they_do_not_fit(command: Command, nameless: Path) -> None:
    said = "n = 1, sound[1] = 1: not given; --dim 'sound[1]'=128 sets one; "
    said += "values that are not given are random: try --input rate=…"
    report = explained(command, nameless)
    assert "cannot pad axis 1 of size 1" in report["problem"]
    assert said in report["problem"]
    assert {row["kernel"] for row in report["rows"]} >= {"not bound", "host If"}
    assert report["inputs"] == {}
    outcome = command("explain", nameless)
    assert outcome.code == 0
    assert said in outcome.out
    assert "1 If asks for sizes (flat); this is the plan for all sizes" in outcome.out
    for arguments in (["explain", nameless, "--run"], ["explain", nameless, "--memory"], ["run", nameless]):
        outcome = command(*arguments)
        assert outcome.code == 1
        assert said in outcome.err
    outcome = command("explain", nameless, "--dim", "n=1", "--dim", "sound[1]=2", "--input", "rate=8")
    assert outcome.code == 1
    assert "not given" not in outcome.err


def test_sizes_are_given_by_place_where_they_have_no_name(command: Command, nameless: Path) -> None:
    report = explained(command, nameless, "--dim", "sound[1]=4")
    assert (report["inputs"]["sound"], report["problem"]) == ([1, 4], None)
    assert report["open_ifs"] == {"names": ["flat"], "decided": ["flat"], "is_shown": True, "note": ""}
    assert "host If" not in {row["kernel"] for row in report["rows"]}
    shown = command("explain", nameless, "--dim", "sound[1]=4").out
    assert "1 If asks for sizes (flat), of which these decide 1; this is the plan for these sizes alone" in shown
    assert command("run", nameless, "--dim", "sound[1]=4").code == 0
    assert "they have n, sound[1]" in command("run", nameless, "--dim", "rate[0]=4").err


def test_declined_rewrites_say_why_and_where(command: Command, tmp_path: Path) -> None:
    """The sum of a skip connection that is broadcast is no SkipLayerNormalization."""
    nodes = [
        helper.make_node("Add", ["data", "row"], ["sum"], name="skip"),
        helper.make_node("LayerNormalization", ["sum", "scale", "shift"], ["result"], name="norm", axis=-1),
    ]
    ones = np.ones(8, np.float32)
    path = saved(
        tmp_path / "norm.onnx", nodes, {"data": ["rows", 8], "row": [1, 8]}, ["result"], {"scale": ones, "shift": ones}
    )
    report = explained(command, path, "--dim", "rows=4")
    (found,) = [one for one in report["declined"] if one["rule"] == "SkipLayerNormFusion"]
    assert found["nodes"] == ["norm"]
    assert "shape" in found["reason"]
    shown = command("explain", path, "--dim", "rows=4").out
    assert f"SkipLayerNormFusion: {found['reason']} (1: norm)" in shown


def test_json_has_stable_keys(command: Command, block: Path) -> None:
    report = explained(command, block)
    assert report["assumed"] == {"rows": 1}
    assert sorted(report) == [
        *("arena_bytes", "assumed", "ceilings", "constant_bytes", "declined", "inputs", "kernels", "known", "model"),
        *(
            "new_sizes",
            "open_ifs",
            "overridable",
            "packed_bytes",
            "problem",
            "rewrites",
            "rows",
            "run_us",
            "runs",
            "scratch_bytes",
        ),
        *("threads", "totals", "views", "why"),
    ]
    assert report["problem"] is None
    assert sorted(report["rows"][0]) == [
        *("body", "bytes", "chunks", "constant_bytes", "detail", "epilogue", "executions", "flops", "gflops"),
        *("kernel", "kind", "measured_us", "nodes", "operators", "predicted_us", "provider", "reason", "roofline"),
        *("rules", "step"),
    ]
    assert sorted(report["totals"]) == ["bytes", "flops", "measured_us", "predicted_us"]


def test_another_instruction_set(command: Command, block: Path) -> None:
    assert explained(command, block, "--kernels", "portable")["kernels"] == "portable"
    rows = explained(command, block, "--kernels", "numpy", "--run", "--repeat", 3)["rows"]
    assert {row["kind"] for row in rows} <= {"host", "numpy"}
    assert all(row["reason"] for row in rows if row["kind"] == "host")
    assert all(row["measured_us"] > 0 for row in rows)
    outcome = command("explain", block, "--kernels", "abacus")
    assert outcome.code == 2
    assert "abacus" in outcome.err


@pytest.mark.parametrize("width", [40, 80, 130, 200])
def test_the_table_fits_any_terminal(
    width: int, command: Command, block: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sardonyx.cli import explain as module

    monkeypatch.setattr(module, "console", lambda: _terminal(width))
    outcome = command("explain", block, "--dim", "rows=6", "--run", "--repeat", 3)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    table, sums = (lines[start : lines.index("", start)] for start in _headings(lines))
    assert all(len(line) <= width for line in (*table, *sums))
    for heading, *rest in (table, sums):
        assert heading.split()[-1] == "roof"
        assert any(line.rstrip().endswith("%") for line in rest)


def _headings(lines: list[str]) -> list[int]:
    """Where the tables of the steps and of the sums begin."""
    return [place for place, line in enumerate(lines) if line.split()[-1:] in (["share"], ["roof"])]


def test_shares_add_up_and_order_the_table(command: Command, mixed: Path) -> None:
    """By time, the steps that take most come first; the shares are those of the times in the same table."""
    out = command("explain", mixed, "--dim", "rows=40", "--dim", "columns=30", "--sort", "time", "--all").out
    lines = out.splitlines()
    start = _headings(lines)[0]
    heading, *rows = lines[start : lines.index("", start)]
    shares = [float(share) for row in rows for share in re.findall(r"([0-9.]+)%", row)]
    assert "share" in heading.split()
    assert len(shares) > 2
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
    assert command("explain", mixed, "--sort", "name").code == 2


def _terminal(width: int) -> Any:
    import sys

    from rich.console import Console

    return Console(width=width, highlight=False, markup=False, file=sys.stdout)


def test_alike_steps_share_a_line(command: Command, tmp_path: Path) -> None:
    weight = np.eye(8, dtype=np.float32)
    nodes = []
    for layer in range(3):
        nodes += [
            helper.make_node("MatMul", [f"x{layer}", "weight"], [f"y{layer}"], name=f"/layer.{layer}/MatMul"),
            helper.make_node("Softmax", [f"y{layer}"], [f"x{layer + 1}"], name=f"/layer.{layer}/Softmax"),
        ]
    path = saved(tmp_path / "layers.onnx", nodes, {"x0": [2, 8]}, ["x3"], {"weight": weight})
    rows = explained(command, path)["rows"]
    assert len(rows) == 6
    shown = command("explain", path).out
    assert "/layer.*/MatMul" in shown
    assert "/layer.1/MatMul" not in shown
    every = command("explain", path, "--all").out
    assert all(f"/layer.{layer}/MatMul" in every for layer in range(3))


def _row(step: int, nodes: tuple[str, ...], **values: Any) -> Row:
    return Row(step=step, kind="native", kernel="gemm MatMul", nodes=nodes, operators=("MatMul",), **values)


def test_lines_add_up_what_is_alike() -> None:
    rows = [_row(0, ("a.0.b",), flops=1.0), _row(1, ("c",), detail="x"), _row(2, ("a.1.b",), flops=2.0)]
    first, second = lines(rows, every=False)
    assert first.total("flops") == 3.0
    assert first.total("measured_us") is None
    assert first.nodes == "a.*.b"
    assert second.rows == (rows[1],)
    assert len(lines(rows, every=True)) == 3


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["one"], "one"),
        (["/a/b/c", "/a/b/d"], "/a/b/* (2)"),
        (["/a/b", "/a/b/c"], "/a/* (2)"),
        (["enc.0.x", "enc.0.y", "enc.0.z"], "enc.0.* (3)"),
        (["left", "right"], "left … (2)"),
    ],
)
def test_several_names_are_shortened_to_what_they_share(names: list[str], short: str) -> None:
    assert abbreviated(names) == short


@pytest.mark.parametrize(
    ("names", "one"),
    [
        (["a.0", "a.1"], "a.*"),
        (["a.0/b.5", "a.1/b.5"], "a.*/b.5"),
        (["same", "same"], "same"),
        (["left 0", "right 1"], "left 0, …"),
        (["a", "a.1"], "a, …"),
    ],
)
def test_names_that_differ_in_numbers_become_one(names: list[str], one: str) -> None:
    assert joined(names) == one


def test_stages(block: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ceilings, "stored_ceilings")  # which may measure the machine for seconds, and no stage shows

    def stage(*words: str) -> str:
        return command("explain", block, "--stage", *words).out

    model = stage("rewritten")
    assert "input data: float[" in model
    assert re.search(r"= com\.microsoft\.\w*Gelu\(.*\)  # \w*Gelu\w* from /block/act/\*", model)
    kernels = stage("kernels")
    assert "step 0: gemm MatMul" in kernels
    assert "= matmul(data, weight: float[" in kernels
    assert "erf(" in kernels
    plan = stage("plan", "--kernel", "0")
    assert re.search(r"reads +input 0 +float32\[", plan)
    assert re.search(r"writes output 0 +float32\[", plan)
    assert "define void @kernel(ptr %arguments" in stage("llvm", "--kernel", "0")
    assembly = stage("asm", "--kernel", "0", "--kernels", "avx2")
    assert assembly.startswith("# GemmSpec(")
    assert ".globl\tkernel" in assembly
    assert "zmm" not in assembly


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stage", "ptx"], "--stage ptx: expected rewritten, kernels, plan, llvm, asm"),
        (["--kernel", "0"], "--kernel N chooses a step"),
        (["--stage", "plan", "--run"], "--stage prints text alone"),
        (["--stage", "asm"], "give the number of its step"),
        (["--stage", "plan", "--kernel", "99"], "there is no step 99: the plan has steps 0 to"),
    ],
)
def test_stages_that_are_none(block: Path, command: Command, words: list[str], message: str) -> None:
    found = command("explain", block, *words)
    assert found.code != 0
    assert message in found.err
