"""What a pretrained model answers: held against arithmetic done by hand on the same steps."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import replace

import builders
import numpy as np
import pytest
import torch
from builders import CONTINUOUS, TOKENS

from ssm_priors.analyses import schema
from ssm_priors.analyses.charts import page
from ssm_priors.analyses.charts import pretraining as charts
from ssm_priors.analyses.charts.theme import MOST_ROWS
from ssm_priors.analyses.pretraining import overall, reconstructions
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import NotThere
from ssm_priors.registry import OBJECTIVES
from ssm_priors.tasks.task import Split

from .chart_data import rows

SPECS = {"continuous": CONTINUOUS, "token": TOKENS}
PAIRS = [(name, kind) for name in OBJECTIVES for kind in OBJECTIVES[name].kinds]
RECONSTRUCTING = [pair for pair in PAIRS if pair[0] not in ("contrastive", "jepa")]
SMALL = {"contrastive": {"frame": 2, "span": 2}}
ERRORS = {"masked": np.abs, "causal": np.abs, "mae": np.square, "denoise": np.square}


def pretrained(name, spec=CONTINUOUS, zero_head=False, **options):
    """A checkpoint as pretraining leaves it, of weights that were moved from the init."""
    part = {"name": name, **SMALL.get(name, {}), **options}
    config = builders.config(model={"causal": name == "causal"}, pretrain=builders.masked(objective=part))
    made = OBJECTIVES[name](config.pretrain.objective.options, spec)
    sizes = {"outputs": made.outputs, "pooled": False, "stand_ins": made.stand_ins}
    model = builders.model(spec=spec, causal=name == "causal", **sizes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
            if zero_head and key.startswith("head.output"):
                parameter.zero_()
    return Checkpoint(config=config, spec=spec, phase="pretrain", tensors=model.state_dict(), record={})


def split_of(kind, rows=12, columns=40, documents=1):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, columns + 1, (rows * documents,), generator=generator)
    if kind == "token":  # some ids much oftener than others
        inputs = torch.randint(20, (len(lengths), columns), generator=generator) ** 2 // 20
    else:
        inputs = torch.randn(len(lengths), columns, 1, generator=generator).exp()
    return Split(inputs, lengths, torch.zeros(rows, dtype=torch.long), documents=documents)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_objective_is_shown_and_can_be_written(name, kind, tmp_path):
    found = reconstructions(pretrained(name, SPECS[kind]), split_of(kind), 5)
    schema.write(found, tmp_path / "a.nc")
    assert schema.read(tmp_path / "a.nc").sizes["example"] == 5
    assert np.isfinite(found.pretrain_loss).all()
    assert found.attrs["pretrain"] == name
    assert (found.answers == (found.is_asked == 1).sum("step")).all()


@pytest.mark.parametrize(("name", "kind"), RECONSTRUCTING)
def test_the_loss_is_that_of_the_answers_shown_on_the_steps_that_are_asked(name, kind):
    found = reconstructions(pretrained(name, SPECS[kind]), split_of(kind), 12)
    asked = (found.is_asked == 1).values
    if kind == "token":
        right = (found.token_asked == found.token_answered).values[asked]
        assert overall(found, "accuracy")["pretrained"] == pytest.approx(right.mean())
        assert (found.token_answered.values[~asked] == -1).all()
    else:
        off = (found.value_asked - found.value_answered).values[asked]
        assert overall(found, "pretrain_loss")["pretrained"] == pytest.approx(ERRORS[name](off).mean(), rel=1e-5)
        assert np.isnan(found.value_answered.values[~asked]).all()


@pytest.mark.parametrize(("name", "kind"), [("masked", "continuous"), ("masked", "token"), ("mae", "continuous")])
def test_what_is_given_is_the_input_and_what_is_asked_is_what_is_hidden(name, kind):
    found = reconstructions(pretrained(name, SPECS[kind]), split_of(kind), 12)
    kind = "token" if kind == "token" else "value"
    hidden = (found.stand_in == 1).values
    inputs, given, asked = (found[key].values.reshape(hidden.shape) for key in (kind, f"{kind}_given", f"{kind}_asked"))
    nothing = -1 if kind == "token" else np.nan
    assert np.array_equal(hidden, found.is_asked.values == 1)
    assert np.array_equal(given, np.where(hidden, nothing, inputs), equal_nan=kind == "value")
    assert np.array_equal(asked, np.where(hidden, inputs, nothing), equal_nan=kind == "value")


@pytest.mark.parametrize("name", ["masked", "causal", "span", "infill"])
def test_a_model_that_knows_nothing_costs_the_log_of_the_vocabulary_and_a_constant_the_entropy(name):
    found = reconstructions(pretrained(name, TOKENS, zero_head=True), split_of("token"), 12)
    losses = overall(found, "pretrain_loss")
    asked = found.token_asked.values[found.is_asked.values == 1]
    share = np.bincount(asked) / len(asked)
    assert losses["pretrained"] == pytest.approx(math.log(20), rel=1e-5)
    assert losses["constant"] == pytest.approx(-(share[share > 0] * np.log(share[share > 0])).sum(), rel=1e-5)
    assert overall(found, "accuracy")["constant"] == pytest.approx(share.max())


@pytest.mark.parametrize(
    ("name", "best"), [("masked", np.median), ("causal", np.median), ("mae", np.mean), ("denoise", np.mean)]
)
def test_the_best_constant_is_the_median_for_l1_and_the_mean_for_squares(name, best):
    found = reconstructions(pretrained(name, zero_head=True), split_of("continuous"), 12)
    losses = overall(found, "pretrain_loss")
    asked = found.value_asked.values[found.is_asked.values == 1]
    assert losses["pretrained"] == pytest.approx(ERRORS[name](asked).mean(), rel=1e-5)
    assert losses["constant"] == pytest.approx(ERRORS[name](asked - best(asked)).mean(), rel=1e-4)


def test_what_is_shown_can_be_copied_and_noise_costs_its_variance():
    found = reconstructions(pretrained("denoise", deviation=0.5), split_of("continuous", rows=200), 200)
    assert overall(found, "pretrain_loss")["copy"] == pytest.approx(0.25, rel=0.1)
    assert "copy" not in reconstructions(pretrained("masked"), split_of("continuous"), 3).answer


def test_choosing_without_knowing_is_chance():
    found = reconstructions(pretrained("contrastive", zero_head=True), split_of("continuous"), 12)
    frames = found.answers.values
    assert np.allclose(found.pretrain_loss.sel(answer="constant"), np.log(frames), rtol=1e-5)
    assert np.allclose(found.accuracy.sel(answer=["constant", "pretrained"]), 1 / frames)


@pytest.mark.parametrize("kind", ["continuous", "token"])
def test_a_representation_that_is_asked_is_the_models_own_and_that_is_said(kind):
    found = reconstructions(pretrained("jepa", SPECS[kind]), split_of(kind), 12)
    assert "no teacher" in found.attrs["teacher"]
    assert overall(found, "mean_cosine")["pretrained"] == pytest.approx(float(np.nanmean(found.cosine)), rel=1e-5)
    assert np.array_equal(np.isfinite(found.cosine.values), found.is_asked.values == 1)


def test_a_mask_depends_on_no_other_example():
    checkpoint, split = pretrained("masked"), split_of("continuous")
    few, many = (reconstructions(checkpoint, split, examples) for examples in (2, 12))
    for one, other in ((0, 0), (1, 11)):
        steps = int((few.stand_in[one] >= 0).sum())
        assert few.value_answered[one, :steps].equals(many.value_answered[other, :steps].assign_coords(example=one))


def test_the_documents_of_a_pair_are_looked_at_each_alone():
    split = split_of("token", documents=2)
    found = reconstructions(pretrained("masked", replace(TOKENS, documents=2)), split, 3)
    assert ((found.token >= 0).sum("step").values == split.lengths[[0, 1, 12, 13, 22, 23]].numpy()).all()


def test_weights_after_finetuning_are_refused():
    checkpoint = replace(pretrained("masked"), phase="finetune")
    with pytest.raises(NotThere, match=r"pretrained\.pt has it"):
        reconstructions(checkpoint, split_of("continuous"), 3)


# -- charts


def pixels(url):
    """The picture in a data URL, read by the rules of the format."""
    content = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    columns, height = struct.unpack(">II", content[16:24])
    size = struct.unpack(">I", content[33:37])[0]
    lines = np.frombuffer(zlib.decompress(content[41 : 41 + size]), np.uint8).reshape(height, 1 + 3 * columns)
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape(height, columns, 3)


def test_images_show_hidden_pixels_in_a_colour_of_their_own_and_all_others_in_grey():
    found = reconstructions(pretrained("mae", replace(CONTINUOUS, width=8)), split_of("continuous"), 12)
    table = rows(charts.images(found))
    assert {row["kind"] for row in table} == {"input", "given", "answered"}
    given = next(row for row in table if row["kind"] == "given" and row["example"] == 0)
    picture = pixels(given["url"])
    scale = picture.shape[1] // 8
    small = picture[::scale, ::scale].reshape(-1, 3)
    hidden = found.stand_in.values[0] != 0  # also behind the end
    assert np.array_equal((small[: len(hidden)] == charts.BLANK).all(1), hidden)
    assert (small[: len(hidden)][~hidden].std(1) == 0).all()


@pytest.mark.parametrize("name", ["masked", "denoise", "causal", "mae", "contrastive"])
def test_series_stay_small_and_say_what_they_leave_out(name):
    long = replace(CONTINUOUS, length=4000)
    found = reconstructions(pretrained(name, long), split_of("continuous", rows=5, columns=4000), 5)
    figure = charts.series(found)
    assert 0 < len(rows(figure)) <= MOST_ROWS
    assert "the first 300 of" in figure.caption


@pytest.mark.parametrize("name", ["contrastive", "jepa"])
def test_answers_that_are_no_inputs_are_shown_step_by_step(name):
    found = reconstructions(pretrained(name), split_of("continuous"), 4)
    assert len(rows(charts.agreement(found))) == int(found.answers.sum())


@pytest.mark.parametrize("name", ["masked", "causal", "span", "infill", "jepa"])
def test_words_are_marked_as_right_or_wrong_as_they_are_and_escaped(name):
    words = [f"<w{number}>" for number in range(20)]
    found = reconstructions(pretrained(name, TOKENS), split_of("token"), 2)
    made = charts.passages(found, words)
    assert [len(passage.lines) for passage in made] == [{"masked": 3, "infill": 3, "jepa": 2}.get(name, 4)] * 2
    looks = [word.look for passage in made for word in dict(passage.lines).get("answered", [])]
    if name != "jepa":
        right = (found.token_asked == found.token_answered).values[found.is_asked.values == 1]
        assert (looks.count("right"), looks.count("wrong")) == (right.sum(), (~right).sum())
    text = page.render("title", [], [], passages=made)
    assert "<w1>" not in text
    assert "&lt;w1&gt;" in text
