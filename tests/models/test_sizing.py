from __future__ import annotations

import builders
import pytest

from ssm_priors.errors import BadConfig
from ssm_priors.models.build import build, parameter_count
from ssm_priors.models.sizing import matched
from ssm_priors.registry import MIXERS
from ssm_priors.studies.grid import Study


def count(config, spec):
    return parameter_count(build(config, spec, 0, outputs=spec.classes, pooled=True))


@pytest.mark.parametrize("spec", [builders.CONTINUOUS, builders.TOKENS], ids=["continuous", "tokens"])
@pytest.mark.parametrize("name", MIXERS)
def test_every_model_is_sized_to_within_two_percent_and_only_in_width(name, spec):
    config = builders.config(name, model={"expand": 2, "layers": 2}).model
    found = matched(config, spec, 60_000)
    assert count(found, spec) == pytest.approx(60_000, rel=0.02)
    assert (found.mixer, found.layers) == (config.mixer, config.layers)
    assert 0.5 < found.feed_forward_width / found.d_model / 2 < 2


def test_without_a_feed_forward_the_width_alone_is_chosen():
    config = builders.config(model={"layers": 2}).model
    found = matched(config, builders.CONTINUOUS, 100_000)
    assert count(found, builders.CONTINUOUS) == pytest.approx(100_000, rel=0.02)
    assert found.feed_forward is None


def test_what_no_width_comes_near_is_refused_with_what_does():
    with pytest.raises(BadConfig, match="no nearer to 150 parameters than"):
        matched(builders.config().model, builders.CONTINUOUS, 150)


def test_a_study_sizes_all_its_models_and_a_variant_may_say_to_what():
    study = Study.from_dict(
        {
            "models": ["s4d", "transformer"],
            "variants": {"20K": {"match_params": 20_000}, "40K": {"match_params": 40_000}},
            "changes": {"model": {"expand": 2}},
        }
    )
    for cell in study.cells():
        spec = builders.TaskSpec(kind="continuous", length=196, classes=10)
        size = count(study.config(cell, 0).model, spec)
        assert size == pytest.approx(int(cell.variant[:2]) * 1000, rel=0.02)
