from __future__ import annotations

import pytest
from builders import config, masked

from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig
from ssm_priors.training.run import run


def costs(settings: RunConfig, folder) -> dict:
    return run(settings, folder, device="cpu").record["cost"]


def test_steps_are_shared_out_and_none_is_lost(tmp_path):
    settings = config(pretrain=masked(), budget={"steps": 7, "pretrain_share": 0.4})
    assert costs(settings, tmp_path)["steps"] == {"pretrain": 3, "finetune": 4}


def test_from_scratch_finetuning_has_it_all(tmp_path):
    assert costs(config(budget={"steps": 5, "pretrain_share": 0.9}), tmp_path)["steps"] == {"finetune": 5}


@pytest.mark.parametrize("mixer", ["s4d", "transformer"])
def test_flops_that_were_counted_stay_within_those_allowed_by_less_than_a_step(mixer, tmp_path):
    allowed = 2e9
    settings = config(mixer, pretrain=masked(), budget={"flops": allowed, "pretrain_share": 0.25})
    spent = costs(settings, tmp_path)
    for phase, share in (("pretrain", 0.25), ("finetune", 0.75)):
        a_step = spent["flops"][phase] / spent["steps"][phase]
        left = share * allowed - spent["flops"][phase]
        assert abs(left) < 1.5 * a_step  # the last batch of an epoch is smaller, so the mean step is, too
        assert spent["steps"][phase] > 2


def test_the_last_step_is_validated_though_no_epoch_ends_there(tmp_path):
    settings = config(budget={"steps": 5})
    checkpoint = run(settings, tmp_path, device="cpu")
    rows = (tmp_path / "metrics.csv").read_text().splitlines()[1:]
    assert [bool(row.rsplit(",", 1)[1]) for row in rows] == [False, False, True, False, True]
    assert checkpoint.record["step"] in (3, 5)


def test_what_pays_for_no_step_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(BadConfig, match="does not pay for one step of finetune"):
        run(config(budget={"flops": 10.0}), tmp_path, device="cpu")
    with pytest.raises(BadConfig, match="does not pay for one step of pretrain"):
        run(config(pretrain=masked(), budget={"steps": 3, "pretrain_share": 0.1}), tmp_path / "b", device="cpu")
