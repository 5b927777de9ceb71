from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.analyses.charts import (
    attention,
    distances,
    kernel_maps,
    kernels,
    page,
    representation,
    spectra,
    studies,
    theme,
    thin,
)
from ssm_priors.analyses.schema import COURSE, NULL
from ssm_priors.registry import MIXERS

from .chart_data import ALL_STAGES, LARGE, ONE, axis_titles, channel, frame, made, results, rows, units
from .conftest import strict_json

DRAWN = {
    "reach": ("kernels", kernels.reach),
    "examples": ("kernels", kernels.examples),
    "examples, linear": ("kernels", lambda dataset: kernels.examples(dataset, log_lag=False)),
    "heat": ("kernels", kernel_maps.heat),
    "unrolled": ("kernels", lambda dataset: kernel_maps.unrolled(dataset, min(8, dataset.sizes["lag"]))),
    "eigenvalues": ("spectra", spectra.eigenvalues),
    "disc": ("spectra", spectra.disc),
    "memory": ("spectra", spectra.memory),
    "density": ("density", spectra.density),
    "gain": ("response", spectra.gain),
    "dots": ("distances", distances.dots),
    "angles": ("distances", distances.angles),
    "maps": ("maps", attention.maps),
    "mass": ("summary", attention.mass),
    "proximity": ("summary", attention.proximity),
    "entropy": ("summary", lambda dataset: attention.proximity(dataset, ("entropy",))),
    "offsets": ("summary", attention.offsets),
    "matrix": ("cka", representation.matrix),
}
"""Every chart of a dataset, and what it takes."""
WITHOUT_STAGES = {"matrix"}
each_chart = pytest.mark.parametrize("name", DRAWN)


def drawn(name: str, stages: tuple[str, ...] = (), sizes: dict[str, int] | None = None) -> theme.Figure:
    subject, draw = DRAWN[name]
    return draw(made(subject, () if name in WITHOUT_STAGES else stages, sizes))


@each_chart
@pytest.mark.parametrize(
    ("sizes", "stages"), [({}, COURSE), (ONE, ()), (ONE, ALL_STAGES), (LARGE, ()), (LARGE, ALL_STAGES)]
)
def test_any_size_and_any_stages_are_drawn_within_the_limit(name, sizes, stages):
    if sizes is LARGE:
        sizes = LARGE | ({"query": 100, "key": 100, "layer": 13} if name == "maps" else {})
        sizes |= {"channel": 40} if DRAWN[name][0] in ("kernels", "response") else {}
    figure = drawn(name, stages, sizes)
    assert 0 < len(rows(figure)) <= theme.MOST_ROWS
    assert figure.caption.strip()
    assert sizes is not LARGE or "Thinned" in figure.caption or "Reduced" in figure.caption or name == "density"


@each_chart
def test_every_mark_tells_its_numbers_under_the_pointer(name):
    spec = theme.spec(drawn(name, COURSE).chart)
    found = list(units(spec))
    assert found
    assert all(unit["encoding"].get("tooltip") for unit in found)


@each_chart
def test_a_dataset_without_any_number_is_a_sentence_and_no_error(name):
    subject, draw = DRAWN[name]
    dataset = made(subject)
    for variable in dataset.data_vars:
        dataset[variable].values[...] = np.nan
    figure = draw(dataset)
    assert "nothing to draw" in json.dumps(theme.spec(figure.chart))
    assert figure.caption.endswith(".")


@each_chart
def test_a_number_that_is_missing_reaches_no_specification(name):
    subject, draw = DRAWN[name]
    dataset = made(subject, () if name in WITHOUT_STAGES else COURSE)
    for variable in dataset.data_vars:
        values = dataset[variable].values.reshape(-1)
        values[: len(values) // 5] = np.nan
        values[-1] = np.inf
    found = draw(dataset)
    strict_json(json.dumps(theme.spec(found.chart)))
    assert "nothing to draw" not in json.dumps(theme.spec(found.chart))


def test_weights_that_depend_on_the_input_leave_out_the_charts_of_weights_alone():
    dataset = made("spectra").assign(weight=lambda data: data.weight * np.nan)
    assert "depend on the input" in spectra.memory(dataset).caption
    assert len(rows(spectra.disc(dataset))) > 10
    assert len(rows(spectra.eigenvalues(dataset))) > 10


def test_stages_keep_their_colours_and_a_single_model_is_learned():
    assert list(theme.STAGE_LOOKS) == list(ALL_STAGES)
    colours = {stage: look.colour for stage, look in theme.STAGE_LOOKS.items()}
    assert len(set(colours.values())) == len(ALL_STAGES)
    for stages in ((), ("init", "learned"), COURSE, ALL_STAGES):
        for scale in (part["scale"] for part in channel(kernels.reach(made("kernels", stages)), "color")):
            assert scale["domain"] == list(stages or ("learned",))
            assert scale["range"] == [colours[stage] for stage in scale["domain"]]


def test_the_null_is_dashed_and_hollow():
    dataset = made("distances", ("init", "learned", NULL))
    points = {
        unit["transform"][0]["filter"].split("'")[1]: unit["mark"]
        for unit in units(theme.spec(distances.dots(dataset).chart))
    }
    assert {stage: mark["filled"] for stage, mark in points.items()} == {"init": True, "learned": True, NULL: False}
    lines = {
        unit["transform"][0]["filter"].split("'")[1]: unit["mark"]["strokeDash"]
        for unit in units(theme.spec(distances.angles(dataset).chart))
    }
    assert lines["init"] == lines["learned"] == [1, 0]
    assert lines[NULL][1] > 0


# -- kernels


def test_channels_of_a_heat_map_lie_in_the_order_of_their_memory_each_divided_by_its_largest():
    dataset = made("kernels", sizes={"layer": 1, "channel": 3, "lag": 10})
    dataset.kernel[:] = 0
    for place, (lag, height) in enumerate([(7, -3.0), (0, 5.0), (4, 0.5)]):
        dataset.kernel[0, place, 0, lag] = height
        dataset.energy_centroid[0, place] = lag
    cells = frame(kernel_maps.heat(dataset), "rank")
    peaks = cells[cells["value"] != 0]
    assert [tuple(row) for row in peaks[["rank", "channel", "lag", "value"]].to_numpy()] == [
        (0, 1, 0, 1), (1, 2, 4, 1), (2, 0, 7, -1)
    ]  # fmt: skip
    forward = cells[(cells["rank"] == 0) & (cells["lag"] >= 0)]
    assert (forward["stop"] - forward["start"] == 1).all()
    assert sorted(cells[cells["rank"] == 0]["lag"]) == list(range(-9, 10))


def test_a_thinned_heat_map_keeps_every_kernels_peak():
    cells = frame(kernel_maps.heat(made("kernels", sizes={"layer": 6, "channel": 90, "lag": 2000})), "rank")
    peaks = cells[cells["lag"] >= 0].groupby(["layer", "rank"])["value"].agg(lambda column: column.abs().max())
    assert (peaks == 1).all()


def test_a_heat_map_shows_the_stage_asked_for():
    dataset = made("kernels", ALL_STAGES, {"layer": 1, "channel": 1, "lag": 4})
    for stage in COURSE:
        kernel = dataset.kernel.sel(stage=stage)[0, 0, 0].values
        cells = frame(kernel_maps.heat(dataset, stage), "rank")
        assert cells[cells["lag"] >= 0].sort_values("lag")["value"].to_numpy() == pytest.approx(kernel / kernel.max())
    assert kernel_maps.heat(dataset).caption == kernel_maps.heat(dataset, "learned").caption


@pytest.mark.parametrize("layers", [1, 12])
def test_a_kernel_that_looks_at_the_pixels_above_lies_in_the_first_column(layers):
    width = 16
    dataset = made("kernels", COURSE, {"layer": layers, "lag": 20 * width})
    dataset.kernel[:] = 0
    dataset.kernel[..., ::width] = 2.0
    figure = kernel_maps.unrolled(dataset, width)
    cells = frame(figure, "pick")
    side = int(cells["column_stop"].min())
    assert (side > 1) == (layers == 12) == ("Thinned" in figure.caption)
    assert set(cells.loc[cells["value"] == 1, "column"]) == {0}
    assert set(cells.loc[cells["column"] > 0, "value"]) == {0}
    assert set(cells["pick"]) == set(kernels.PICKS)
    assert cells["row_stop"].max() == 20


def test_the_fit_of_a_prior_is_drawn_over_the_same_channels():
    dataset = made("kernels")
    fit = dataset[["kernel"]] * 2
    fit.attrs["prior"] = "s4d-lin"
    found = frame(kernels.examples(dataset, fit), "pick").set_index(["layer", "pick", "lag"])
    ours, theirs = (found[found["stage"] == stage] for stage in ("learned", "best fit of s4d-lin"))
    assert len(ours) == len(theirs) > 0
    assert theirs["high"].to_dict() == pytest.approx((2 * ours["high"]).to_dict())
    assert "best fit of s4d-lin" not in json.dumps(theme.spec(kernels.examples(dataset).chart))


def test_lags_are_logarithmic_unless_asked_otherwise():
    for log, kind in ((True, "symlog"), (False, None)):
        scales = [part["scale"] for part in channel(kernels.examples(made("kernels"), log_lag=log), "x")]
        assert {scale.get("type") for scale in scales} == {kind}


# -- spectra


@pytest.mark.parametrize("grown", [1.0, 1.6])
def test_the_disc_is_round_and_holds_every_mode(grown):
    dataset = made("spectra")
    dataset.z_real[0, 0, 0], dataset.z_imag[0, 0, 0] = 0.0, -grown
    figure = spectra.disc(dataset)
    spec = theme.spec(figure.chart)
    x, y = (channel(figure, axis)[0]["scale"]["domain"] for axis in ("x", "y"))
    inner = spec["spec"]
    assert inner["width"] / inner["height"] == pytest.approx((x[1] - x[0]) / (y[1] - y[0]))
    assert x[1] > grown
    assert y[0] < -grown
    circle, points = frame(figure, "angle"), frame(figure, "stage")
    assert np.hypot(circle["z_real"], circle["z_imag"]).to_numpy() == pytest.approx(1)
    assert sorted(points["z_real"]) == pytest.approx(sorted(dataset.z_real.values.ravel()))


def test_modes_that_do_not_decay_are_counted_and_not_drawn():
    dataset = made("spectra")
    dataset.decay_rate[0, 0, :2] = -0.1
    dataset.timescale[0, 0, :2] = -10.0
    for figure, column in ((spectra.eigenvalues(dataset), "decay_rate"), (spectra.memory(dataset), "timescale")):
        assert "2 do not decay" in figure.caption
        assert frame(figure, column)[column].min() > 0


def test_a_density_is_drawn_where_there_is_weight_and_what_lies_beyond_is_told():
    dataset = made("density", COURSE)
    dataset.decay_density[:] = 0
    dataset.decay_density[..., 12] = 5.0
    dataset.outside[:] = 0.125
    figure = spectra.density(dataset)
    drawn = frame(figure, "decay_density")
    peaks = drawn[drawn["decay_density"] > 0]
    assert set(peaks["rate"]) == {float(dataset.rate[12])}
    assert len(peaks) == 3 * 2
    assert len(drawn) < dataset.decay_density.size / 4
    assert "12.5%" in figure.caption


def test_gains_are_quantiles_over_kernels_without_frequency_0():
    dataset = made("response", sizes={"layer": 1, "channel": 10, "cycle": 5})
    dataset.gain[:] = np.arange(1, 21).reshape(1, 10, 2, 1)
    drawn = frame(spectra.gain(dataset), "cycle")
    assert sorted(drawn["cycle"]) == [0.125, 0.25, 0.375, 0.5]
    assert (drawn["median"] == 10.5).all()
    assert drawn["low"].to_numpy() == pytest.approx(1.95)
    assert drawn["high"].to_numpy() == pytest.approx(19.05)


def test_a_resonance_between_drawn_frequencies_is_not_lost():
    dataset = made("response", sizes={"layer": 6, "channel": 1, "cycle": 4001})
    dataset.gain[:] = 1.0
    dataset.gain[..., 3217] = 9.0
    figure = spectra.gain(dataset)
    assert "Thinned" in figure.caption
    assert (frame(figure, "cycle").groupby("layer")["high"].max() == 9).all()


# -- distances


def test_dots_are_the_numbers_themselves():
    dataset = made("distances", ("init", "learned", NULL))
    dataset.captured[1, 1, 3] = np.nan
    figure = distances.dots(dataset)
    assert "1 values that are not defined" in figure.caption
    for name in distances.QUANTITIES:
        for row in frame(figure, name).to_dict("records"):
            assert row[name] == float(dataset[name].sel(stage=row["stage"], layer=row["layer"], prior=row["prior"]))
    assert len(frame(figure, "captured")) == dataset.captured.size - 1


def test_quantities_that_a_mixer_cannot_show_have_no_panel():
    without = distances.dots(made("distances").drop_vars(["decay_distance", "frequency_distance"]))
    assert "decay" not in json.dumps(theme.spec(without.chart))
    assert axis_titles(theme.spec(without.chart)) == {"captured", "best timescale (times dt)"}


# -- attention


@given(shape=st.tuples(st.integers(1, 40), st.integers(1, 40)), most=st.integers(1, 200), seed=st.integers(0, 9))
def test_blocks_keep_the_mean_and_the_peak(shape, most, seed):
    image = np.random.default_rng(seed).standard_normal(shape)
    side = thin.blocks(shape, most)
    means, peaks = thin.block_means(image, side), thin.block_peaks(image, side)
    assert means.size <= most
    assert means.shape == peaks.shape == (-(-shape[0] // side), -(-shape[1] // side))
    assert means[0, 0] == pytest.approx(image[:side, :side].mean())
    assert np.abs(peaks).max() == np.abs(image).max()
    assert np.isin(peaks, image).all()


def test_a_block_without_a_number_stays_without_one():
    image = np.array([[np.nan, np.nan, 3.0], [np.nan, np.nan, np.nan], [1.0, np.nan, -5.0]])
    for reduce in (thin.block_means, thin.block_peaks):
        found = reduce(image, 2)
        assert np.isnan(found[0, 0])
        assert found[0, 1] == 3
        assert found[1].tolist() == [1, -5]


@pytest.mark.parametrize("length", [20, 64, 300])
def test_a_map_is_at_most_64_cells_wide_and_says_what_was_reduced(length):
    dataset = made("maps", sizes={"layer": 1, "head": 1, "example": 1, "query": length, "key": length})
    dataset.attention[:] = np.eye(length) * 0.75
    dataset.attention[..., length - 3 :, :] = np.nan
    figure = attention.maps(dataset)
    cells = frame(figure, "row")
    side = -(-length // 64)
    assert cells.groupby("row").size().max() <= 64
    assert (f"mean of {side} x {side}" in figure.caption) == (side > 1)
    assert "padding are left blank" in figure.caption
    on_diagonal = cells[(cells["row"] == cells["column"]) & (cells["row_stop"] <= length - 3)]
    assert on_diagonal["value"].to_numpy() == pytest.approx(0.75 / side)
    assert cells["row"].max() < length - 3


def test_mass_by_distance_is_that_of_every_head_with_even_attention_marked():
    dataset = made("summary", COURSE)
    dataset.uniform_distance[:] = 5.5
    drawn = frame(attention.mass(dataset), "even")
    heads, even = drawn[~drawn["even"].astype(bool)], drawn[drawn["even"].astype(bool)]
    assert set(even["distance"]) == {"4-7"}
    assert sorted(even["layer"]) == [0, 1]
    assert list(dict.fromkeys(heads["distance"])) == ["0", "1", "2-3", "4-7", "8+"]
    one = heads.query("stage == 'pretrained' and layer == 1 and head == 2")
    assert one["mass"].to_numpy() == pytest.approx(dataset.mass.sel(stage="pretrained", layer=1, head=2).values)


def test_without_even_attention_no_line_is_drawn_or_told_of():
    figure = attention.mass(made("summary").drop_vars("uniform_distance"))
    assert "even attention" not in figure.caption
    assert {unit["mark"]["type"] for unit in units(theme.spec(figure.chart))} == {"line"}


def test_proximity_is_a_dot_a_head_layer_and_stage_beside_even_attention():
    dataset = made("summary", COURSE)
    figure = attention.proximity(dataset)
    assert axis_titles(theme.spec(figure.chart)) == {
        "mean distance (steps)", "mean row distance (rows)", "mean column distance (columns)", "layer"
    }  # fmt: skip
    dots, even = frame(figure, "mean_distance"), frame(figure, "uniform_distance")
    assert sorted(dots["mean_distance"]) == pytest.approx(sorted(dataset.mean_distance.values.ravel()))
    assert len(even) == dataset.uniform_distance.size


def test_offsets_lie_where_they_are():
    dataset = made("summary")
    dataset.offset_mass[:] = 0
    dataset.offset_mass[:, 1, 4, 2] = 0.5
    cells = frame(attention.offsets(dataset, head=1), "row")
    assert cells[cells["value"] > 0][["layer", "row", "column"]].to_numpy().tolist() == [[0, 4, 2], [1, 4, 2]]
    assert (frame(attention.offsets(dataset, head=0), "row")["value"] == 0).all()


# -- representation


def test_a_small_matrix_shows_its_numbers_and_a_large_one_does_not():
    small, large = (representation.matrix(made("cka", sizes={"layer": size})) for size in (3, 20))
    marks = [{unit["mark"]["type"] for unit in units(theme.spec(figure.chart))} for figure in (small, large)]
    assert marks == [{"rect", "text"}, {"rect"}]
    assert len(rows(small)) == 9
    assert axis_titles(theme.spec(small.chart)) == {"layer of s4d", "layer of dlr"}
    assert "99 points" in small.caption


# -- studies


def test_a_study_is_dashed_from_scratch_and_whole_after_pretraining_in_the_models_colours():
    figure = studies.against_fraction(results())
    (dash,) = channel(figure, "strokeDash")
    assert dict(zip(dash["scale"]["domain"], dash["scale"]["range"], strict=True)) == {
        "from scratch": [5, 3],
        "masked pretraining": [1, 0],
    }
    colour = channel(figure, "color")[0]["scale"]
    assert dict(zip(colour["domain"], colour["range"], strict=True)) == {
        f"{model}, {init}": theme.model_colour(model) for model in ("s4d", "dlr") for init in ("s4d-lin", "random")
    }
    shape = channel(figure, "shape")[0]["scale"]
    assert len({*zip(colour["range"], shape["range"], strict=True)}) == 4
    assert axis_titles(theme.spec(figure.chart)) == {"share of the labelled training inputs", "test accuracy"}


def test_models_of_one_colour_differ_in_shape():
    names = list(MIXERS)
    models = (names[0], names[len(theme.PALETTE)])  # there are fewer colours than models
    assert len({theme.model_colour(model) for model in models}) == 1
    figure = studies.against_fraction(results(models, ("none",)))
    shape = channel(figure, "shape")[0]["scale"]
    assert shape["domain"] == list(models)
    assert len(set(shape["range"])) == 2


@pytest.mark.parametrize(("x", "kind"), [([0.01, 0.1, 1], "log"), ([0.5, 0.75, 1], None), ([0, 10, 1000], None)])
def test_the_axis_is_logarithmic_where_values_span_much_and_none_is_0(x, kind):
    frame = results(["s4d"], ["random"]).assign(x=[*x, *x])
    for part in channel(studies.against_budget(frame, "training steps"), "x"):
        assert part["scale"].get("type") == kind
        assert part["title"] == "training steps"


def test_cells_without_a_result_are_left_out_and_single_ones_have_a_bar():
    cells = results(["s4d"], ["random"])
    cells.loc[cells["pretrain"] == "masked", "value"] = [np.nan, 0.7, np.nan]
    figure = studies.against_fraction(cells)
    assert "Left out: 2 cells" in figure.caption
    drawn = frame(figure, "cell")
    assert drawn[drawn["alone"]]["value"].tolist() == [0.7]
    assert len(drawn) == 4
    empty = studies.against_fraction(cells.assign(value=np.nan))
    assert "No cell has a result" in empty.caption


def test_a_page_of_every_figure_opens_without_complaint(tmp_path, browse):
    figures = [drawn(name, ALL_STAGES) for name in DRAWN]
    figures += [drawn(name, (), ONE) for name in DRAWN]
    figures += [studies.against_fraction(results()), studies.against_budget(results(), "steps", "loss", percent=False)]
    figures += [theme.nothing("Weights", "They are not known.")]
    page.write(tmp_path / "page.html", "All figures", [], figures)
    assert (tmp_path / "page.html").stat().st_size < 8e6
    document, complaints = browse(tmp_path / "page.html")
    assert complaints == []
    assert document.count('<svg xmlns="http://www.w3.org/2000/svg"') == len(figures)
    assert "This chart failed" not in document.split("<script", 1)[0]
