"""Whatever a newcomer gets wrong: one line that says what to do, exit code 2, no traceback, nothing trained."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

WRONG = [
    (["ablate"], "nothing to ablate"),
    (["ablate", "--init", "randm"], "Did you mean random?"),
    (["ablate", "--pretrain", "maskd"], "Did you mean masked?"),
    (["ablate", "--model", "transfomer", "--pretrain", "masked"], "Did you mean transformer?"),
    (["ablate", "--init", "random", "--task", "mnst"], "Did you mean mnist?"),
    (["ablate", "--init", "random", "--preset", "quik"], "Did you mean quick?"),
    (["ablate", "--init", "random", "--model", "transformer"], "no option init"),
    (["ablate", "--pretrain", "causal", "--bidirectional"], "sees both sides"),
    (["ablate", "--pretrain", "masked", "--set", "pretrain.objective.ratio=1"], "ratio"),
    (["ablate", "--pretrain", "masked", "--set", "pretrain.objective.ratio=0"], "ratio"),
    (["ablate", "--pretrain", "masked", "--fraction", "0.0001"], "leaves class"),
    (["ablate", "--pretrain", "masked", "--fraction", "2"], "fraction"),
    (["ablate", "--pretrain", "masked", "--set", "finetune.batch_size=9999"], "larger than the training split"),
    (["ablate", "--pretrain", "masked", "--set", "finetune.epoch=9"], "Did you mean epochs?"),
    (["ablate", "--pretrain", "masked", "--set", "epochs"], "KEY=VALUE"),
    (["ablate", "--pretrain", "masked", "--set", "model.mixer.init=random"], "options of their own"),
    (["ablate", "--pretrain", "masked", "--set", "fraction=0.5"], "options of their own"),
    (["ablate", "--pretrain", "masked", "--set", "model.causal=no"], "true or false"),
    (["ablate", "--pretrain", "masked", "--device", "tpu"], "auto, cpu or cuda"),
    (["ablate", "--pretrain", "masked", "--seeds", "0"], "seeds"),
    (["ablate", "--init", "random", "--set", "pretrain.epochs=3"], "nothing pretrains"),
    (["ablate", "--pretrain", "masked", "--fraction", "0.1,x"], "numbers were expected"),
    (["ablate", "--pretrain", "masked", "--out", "/proc/none"], "cannot be made"),
    (["train", "--set", "pretrain.epoch=banana"], "nothing pretrains"),
    (["train", "--set", "model.mixer.heads=4"], "no such setting"),
    (["train", "--model", "transformer", "--set", "model.mixer.heads=7"], "heads"),
    (["train", "--pretrain", "causal"], "--causal"),
    (["train", "missing.toml"], "no such file"),
    (["train", "missing.toml", "--precision", "bf16-mixed"], "--precision cannot stand beside it"),
    (["train", "--precision", "16"], "'32' or 'bf16-mixed'"),
    (["train", "--set", "test=false"], "a trial of a study"),
    (["ablate", "--pretrain", "masked", "--set", "test=false"], "test"),
    (["ablate", "--pretrain", "masked", "--budget", "100"], "steps=N or flops=N"),
    (["ablate", "--pretrain", "masked", "--budget", "flops=1"], "does not pay for one step"),
    (["ablate", "--pretrain", "masked", "--spt-share", "0.5"], "a share of what"),
    (["ablate", "--pretrain", "masked", "--match-params", "10"], "no nearer to 10 parameters"),
    (["study", "run", "explicit-priors", "--set", "exclude=x"], "exclude"),
    (["study", "run", "explicit-priors", "--set", "claims=x"], "claims"),
    (["evaluate", "missing.pt"], "no such file"),
    (["inspect-kernels", "missing.pt"], "no such file"),
    (["report", "."], "no study.toml"),
    (["list", "modles"], "Did you mean models?"),
    (["ablat"], "ablat"),
]


@pytest.mark.parametrize(
    ("arguments", "hint"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_wrong_use_is_told_in_a_line(ssmp, tmp_path, arguments, hint):
    said = ssmp(*arguments, cwd=tmp_path)
    assert said.returncode == 2
    assert hint in said.stderr.replace("\n", " ")
    assert "Traceback" not in said.stderr
    assert said.stdout == ""
    assert list(tmp_path.iterdir()) == []


class RunsCode:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


@pytest.mark.xdist_group("study")
@pytest.mark.parametrize("command", ["evaluate", "inspect-kernels"])
@pytest.mark.parametrize("kind", ["code", "truncated", "foreign", "empty", "text"])
def test_files_that_are_no_checkpoint_are_refused_in_a_line(ssmp, study, tmp_path, command, kind):
    good = next(study[0].glob("runs/*/ckpt.pt")).read_bytes()
    path = tmp_path / "ckpt.pt"
    if kind == "foreign":
        torch.save({"state_dict": {"layer.weight": torch.zeros(3)}}, path)
    else:
        content = {
            "code": pickle.dumps(RunsCode()),
            "truncated": good[: len(good) // 2],
            "empty": b"",
            "text": b"hello",
        }
        path.write_bytes(content[kind])
    said = ssmp(command, path, cwd=tmp_path)
    assert said.returncode == 2
    first, *more = said.stderr.strip().splitlines()
    assert "ckpt.pt" in first
    if (kind, command) == ("foreign", "inspect-kernels"):  # says what would have been known
        assert "no known family. Its parameters: layer.weight" in first
    else:
        assert not more
    assert {entry.name for entry in tmp_path.iterdir()} == {"ckpt.pt"}
