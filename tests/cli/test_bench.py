from __future__ import annotations

import json

import pytest
import torch

from ssm_priors.ops import backend
from ssm_priors.studies.bench import measure
from ssm_priors.studies.bench.measure import MOST_ROUNDS, Peaks, floor, peak_memory, timed
from ssm_priors.studies.bench.problems import Problem, ready

TINY = Problem("layer", 2, 8, 4, 32)


@pytest.mark.parametrize("kind", ["layer", "step"])
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
@pytest.mark.parametrize("variant", ["naive", "torch"])
def test_every_variant_does_every_problem(kind, precision, variant):
    ready(Problem(kind, 2, 4, 4, 32, 1, precision), variant)()


def test_times_come_from_turns_in_one_process_under_the_setting_asked_for():
    found = timed(TINY, ["naive", "torch", "attention"], tuned=False, threads=1, seconds=0.01)
    assert list(found.times) == ["naive", "torch", "attention"]
    assert found.malloc == "off"
    assert found.floor == floor(TINY, found.peaks)
    for spread in found.times.values():
        assert 0 < spread.low <= spread.median <= spread.high
        assert 3 <= spread.rounds <= MOST_ROUNDS


def test_memory_is_at_least_what_the_layer_gives_back():
    problem = Problem("layer", 4, 32, 4, 8192)
    held = peak_memory(problem, "torch", 1)
    if held is None:
        pytest.skip("no /proc/self/clear_refs here")
    assert 2 * problem.input_bytes < held < 60 * problem.input_bytes


def test_the_floor_is_the_sum_of_its_parts():
    peaks = Peaks(matmul=1e9, matmul_half=2e9, copy=1e9)
    problem = Problem("layer", 2, 4, 4, 32)
    product, transforms = 12 * 2 * 32 * 16 / 1e9, 5 * 4 * (4.25 * 64 * 5) / 0.5e9
    assert floor(problem, peaks) == pytest.approx(1e3 * (product + transforms + 24 * 4 * 2 * 4 * 32 / 1e9))


@pytest.mark.parametrize("pays", [True, False])
def test_mixed_precision_is_measured_where_it_pays(monkeypatch, pays, capsys):
    import ssm_priors.cli.bench as command
    from ssm_priors.cli.output import Output

    monkeypatch.setattr(command, "half_pays", lambda: pays)
    problems = command._problems(False, Output())
    assert ("bf16-mixed" in {problem.precision for problem in problems}) is pays
    assert ("left out: mixed precision" in capsys.readouterr().err) is not pays


def test_whether_bfloat16_pays_is_told_from_products_in_both(monkeypatch):
    times = {torch.float32: 2.0, torch.bfloat16: 1.0}
    monkeypatch.setattr(measure, "_quickest", lambda work, clock: times[work().dtype])
    assert measure.half_pays()
    times[torch.bfloat16] = 3.0
    assert not measure.half_pays()


def test_the_command_writes_a_table_a_page_and_json(tmp_path, monkeypatch):
    import ssm_priors.cli.bench as command
    from ssm_priors.cli.output import Output

    said = []
    monkeypatch.setattr(command, "QUICK", [TINY, Problem("step", 2, 4, 4, 32)])
    monkeypatch.setattr(command, "LENGTHS", {True: [16, 32]})
    monkeypatch.setattr(command, "SECONDS", {True: 0.01})
    monkeypatch.setattr(Output, "json", lambda self, document: said.append(document))
    assert command.bench(quick=True, threads=1, out=tmp_path / "bench", output=Output(as_json=True)) == 0
    document = json.loads(json.dumps(said[0], allow_nan=False))
    assert [row["malloc"] for row in document["rows"]] == ["on", "off"] * 2 or document["rows"][0]["malloc"] != "on"
    assert {row["length"] for row in document["against_length"]} == {16, 32}
    with backend.using("auto") as best:
        paths = {"naive", "torch", "fused"} if best.name == "fused" else {"naive", "torch"}
    assert all(set(row["times"]) == paths and row["backend"] == str(best) for row in document["rows"])
    assert {row["variant"] for row in document["against_length"]} == paths | {"attention"}
    text = (tmp_path / "bench" / "bench.html").read_text(encoding="utf-8")
    assert all(word in text for word in ("x floor", "floor ms", "quartiles", "load", str(best)))
    assert "Cost against length" in text
