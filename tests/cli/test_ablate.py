"""The 2 x 2 through the real command, on a tiny configuration."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import xarray as xr

from ssm_priors.checkpoints.checkpoint import Checkpoint

from .conftest import FROM_SCRATCH, TINY

pytestmark = pytest.mark.xdist_group("study")


def runs(folder: Path) -> dict[str, Checkpoint]:
    return {path.parent.name: Checkpoint.read(path) for path in sorted(folder.glob("runs/*/ckpt.pt"))}


def test_the_two_by_two_runs_every_cell_and_prints_table_and_effects(study):
    folder, said = study
    cells = {(run.config.model.mixer.options.init, run.config.pretrain is not None) for run in runs(folder).values()}
    assert cells == {("s4d-lin", False), ("s4d-lin", True), ("random", False), ("random", True)}
    for cell in ("s4d-lin", "random"):
        assert cell in said.stdout
    assert "interaction" in said.stdout.lower()
    assert "at least 3 seeds" in said.stdout or "3 or more seeds" in said.stdout or "3 seeds" in said.stdout


def test_the_study_folder_holds_what_the_readme_says(study):
    folder, _ = study
    assert tomllib.loads((folder / "study.toml").read_text())["inits"] == ["random"]
    for run in folder.glob("runs/*"):
        held = {path.name for path in run.iterdir()}
        assert {"run.toml", "ckpt.pt", "metrics.csv", "test.npz"} <= held
        assert "state.pt" not in held
    results = xr.open_zarr(folder / "results.zarr", consolidated=False)
    assert {"model", "init", "pretrain", "task", "fraction", "budget", "seed", "example"} <= set(results.sizes)
    assert "<html" in (folder / "report.html").read_text().lower()


def test_the_same_command_again_keeps_finished_runs(ssmp, study):
    folder, first = study
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/ckpt.pt")}
    again = ssmp("ablate", "--init", "random", "--pretrain", "masked", *TINY, "--out", folder)
    assert again.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/ckpt.pt")} == before
    assert again.stderr.count("kept") == 4
    assert again.stdout == first.stdout


def test_json_is_one_strict_document_that_agrees_with_the_checkpoints(ssmp, study):
    folder, _ = study
    said = ssmp("report", folder, "--json")
    document = json.loads(said.stdout, parse_constant=lambda bare: pytest.fail(f"{bare} is not JSON"))
    told = sorted(cell["accuracy"] for cell in document["cells"])
    assert told == pytest.approx(sorted(run.record["metrics"]["test_accuracy"] for run in runs(folder).values()))
    names = {Path(path).relative_to(folder).as_posix() for path in document["report_files"] if Path(path).is_file()}
    assert len(names) == len(document["report_files"])
    assert {"report.html", "report.md", "results.csv", "tables/compute.tex", "figures/gap-digits-0-15.pdf"} <= names


def test_a_folder_of_another_study_is_refused_and_left_alone(ssmp, study):
    folder, _ = study
    before = (folder / "study.toml").read_bytes()
    said = ssmp("ablate", "--init", "s4d-inv", *FROM_SCRATCH, "--out", folder)
    assert said.returncode == 2
    assert "another study" in said.stderr
    assert "Traceback" not in said.stderr
    assert (folder / "study.toml").read_bytes() == before


def test_a_folder_with_other_files_is_refused(ssmp, tmp_path):
    (tmp_path / "thesis.tex").write_text("do not lose me")
    said = ssmp("ablate", "--init", "random", *FROM_SCRATCH, "--out", tmp_path)
    assert said.returncode == 2
    assert "no study.toml" in said.stderr


def test_a_damaged_finished_run_is_set_aside_told_and_run_again_to_the_same_result(ssmp, study, tmp_path):
    shutil.copytree(study[0], tmp_path / "copy")
    damaged = next((tmp_path / "copy").glob("runs/*/test.npz"))
    damaged.unlink()
    said = ssmp("ablate", "--init", "random", "--pretrain", "masked", *TINY, "--out", tmp_path / "copy")
    assert said.returncode == 0
    assert "to be run again" in said.stderr
    assert f"{damaged.parent.name}.damaged-1" in said.stderr
    assert damaged.exists()
    assert said.stdout.replace(str(tmp_path / "copy"), str(study[0])) == study[1].stdout


def test_a_study_means_what_it_meant_when_the_preset_is_another(study, tmp_path, monkeypatch):
    from ssm_priors import presets
    from ssm_priors.studies.grid import Study

    before = Study.read(study[0] / "study.toml").runs()
    real = presets.load
    monkeypatch.setattr(
        presets, "load", lambda name: presets.merge(real(name), {"run": {"finetune": {"batch_size": 26}}})
    )
    assert Study.read(study[0] / "study.toml").runs() == before


def test_no_baseline_runs_the_named_cell_alone(ssmp, tmp_path):
    arguments = ["--init", "random", "--pretrain", "masked", "--no-baseline", *TINY]
    said = ssmp("ablate", *arguments, "--out", tmp_path / "out", "--quiet")
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
    [run] = runs(tmp_path / "out").values()
    assert (run.config.model.mixer.options.init, run.config.pretrain is not None) == ("random", True)


def test_a_transformer_has_no_init_axis_and_causal_pretraining_makes_all_cells_one_sided(ssmp, tmp_path):
    arguments = ["--model", "transformer", "--model", "s4d", "--init", "random", "--pretrain", "causal"]
    tiny = [part for part in TINY if "d_state" not in part]
    tiny = [part for at, part in enumerate(tiny) if part != "--set" or "=" in tiny[at + 1]]
    said = ssmp("ablate", *arguments, *tiny, "--out", tmp_path / "out")
    assert said.returncode == 0, said.stderr
    configs = [run.config for run in runs(tmp_path / "out").values()]
    assert sorted(config.model.mixer.name for config in configs) == ["s4d"] * 4 + ["transformer"] * 2
    assert all(config.model.causal for config in configs)
    assert "one-sided" in said.stderr
    with open(tmp_path / "out" / "tables" / "what-the-state-spaces-learned-distance-from-priors.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["prior"] for row in rows} == {"hippo-legs", "s4d-lin"}
    own = [row for row in rows if row["prior"] == "s4d-lin" and row["cell"].startswith("s4d, s4d-lin")]
    assert all(float(row["init"]) < 1e-5 for row in own if row["quantity"].startswith(("decay", "frequency")))
    with open(tmp_path / "out" / "tables" / "where-attention-looks-mean-distance-steps.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["cell"] for row in rows} == {"transformer, from scratch", "transformer, causal pretraining"}
    assert [row["pretrained"] == "-" for row in rows] == [row["cell"].endswith("scratch") for row in rows]
    assert all(0 < float(row["learned"]) < 64 for row in rows)


def test_a_run_that_blows_up_fails_its_cell_and_not_the_study(ssmp, tmp_path):
    blow_up = ["--set", "finetune.learning_rate=1e30", "--set", "finetune.warmup=0.0", "--set", "finetune.clip=1e30"]
    said = ssmp("ablate", "--init", "random", *FROM_SCRATCH, *blow_up, "--out", tmp_path / "out")
    assert said.returncode == 1
    assert "failed" in said.stdout + said.stderr
    assert "learning_rate" in said.stderr
    assert "Traceback" not in said.stderr
    assert (tmp_path / "out" / "report.html").exists()


def test_interrupting_a_study_and_giving_the_command_again_ends_with_the_same_weights(ssmp, study, tmp_path):
    folder, _ = study
    command = ["ablate", "--init", "random", "--pretrain", "masked", *TINY, "--save-every", "0", "--jobs", "1"]
    line = [sys.executable, "-m", "ssm_priors.cli", *command, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list((tmp_path / "out").glob("runs/*/state.pt")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    said = ssmp(*command, "--out", tmp_path / "out")
    assert said.returncode == 0, said.stderr
    digests = {name: run.digest for name, run in runs(folder).items()}
    assert {name: run.digest for name, run in runs(tmp_path / "out").items()} == digests
