"""Reports: kept in a file, shown as tables, drawn as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import machine, plot, report, summary
from benchmarks.compare import Timing
from benchmarks.floors import Floors
from benchmarks.lengths import Pass, chosen_lengths, summarise

FLOORS = Floors({1: {"f32": 100.0}}, {1: {"L3": 50.0, "DRAM": 10.0}}, l3=1000)


def timings() -> list[Timing]:
    made = []
    for threads in (1, 2):
        for engine, ratio in (("onnxruntime", 1.0), ("openvino", 1.25), ("sardonyx", 2.5), ("openvino-bf16", 2.0)):
            figures = {"median_ms": 10 / ratio, "min_ms": 9 / ratio, "runs": 3, "ratio": ratio, "gflops": ratio}
            made.append(Timing("bert-base", engine, threads, best_ratio=ratio / 1.25, **figures))
    made.append(Timing("bert-base", "sardonyx-bf16", 1, median_ms=2.5, ratio=4.0, gflops=4.0))
    return [*made, Timing("vit-base", "sardonyx", 1, error="ValueError: no")]


def filled(path: Path | None) -> report.Report:
    kept = report.Report(path)
    kept.floors = FLOORS
    kept.put("models", timings(), {"seconds": 1.0})
    return kept


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.json"
    filled(path)
    again = report.Report(path)
    assert again.rows("models") == [asdict(row) for row in timings()]
    assert again.floors == FLOORS
    assert again.data["models"]["settings"] == {"seconds": 1.0}
    again.put("small", [{"call": "run"}])
    assert set(json.loads(path.read_text())) == {"machine", "floors", "models", "small"}
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_figures_of_another_machine_are_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    filled(path)
    data = json.loads(path.read_text())
    data["machine"]["lscpu"] = {"Model name": "another"}
    path.write_text(json.dumps(data))
    assert report.Report(path).rows("models") == []
    assert "another machine" in capsys.readouterr().out


def test_without_a_file_nothing_is_written() -> None:
    assert filled(None).rows("models")[0]["model"] == "bert-base"


def test_the_machine_is_described() -> None:
    facts = machine.facts()
    assert facts["cores"] >= 1
    assert facts["memory_gib"] > 0
    assert json.loads(json.dumps(facts)) == facts
    assert str(facts["cpu"]) in machine.line(facts)


def test_tables_of_a_report() -> None:
    text = summary.render(filled(None).data)
    (line,) = (
        line for line in text.splitlines() if line.startswith("| bert-base") and "|   1 |          10.00" in line
    )
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[:7] == ["bert-base", "1", "10.00", "4.00", "2.50", "1.25", "2.00"]
    assert "### Ceilings of the machine" in text
    (bf16,) = (line for line in text.splitlines() if line.endswith("|     2.00 |"))
    assert [cell.strip() for cell in bf16.split("|")[1:-1]] == ["bert-base", "1", "5.00", "2.50", "2.00"]
    only = summary.render(filled(None).data, ["floors"])
    assert "bert-base" not in only


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    path = tmp_path / "speed.png"
    plot.draw(filled(None).data, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


def test_no_picture_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no speed-ups"):
        plot.draw(report.Report(None).data, tmp_path / "speed.png")


def test_lengths_are_different_and_always_the_same() -> None:
    lengths = chosen_lengths(64, 128)
    assert len(set(lengths)) == 64
    assert 128 not in lengths
    assert min(lengths) >= 1
    assert lengths == chosen_lengths(64, 128)


def test_cost_of_a_new_length() -> None:
    row = Pass("m", "sardonyx", 1, 1, lengths=[5, 6, 7], first_ms=[3.0, 10.0, 4.0], steady_ms=[2.0, 2.0, 2.0])
    summarise(row)
    assert (row.extra_median_ms, row.extra_most_ms) == (2.0, 8.0)
    assert (row.first_sum_ms, row.steady_sum_ms) == (17.0, 6.0)
