from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.analyses.charts import kernels as kernel_charts
from ssm_priors.analyses.charts import page, theme, thin
from ssm_priors.analyses.charts import spectra as spectrum_charts
from ssm_priors.analyses.distances import best_fits
from ssm_priors.analyses.schema import DIRECTIONS, STAGES, index, labelled
from ssm_priors.analyses.summaries import inspection
from ssm_priors.errors import BadConfig
from ssm_priors.registry import MIXERS

from .chart_data import axis_titles, rows
from .conftest import strict_json

CHARTS = [kernel_charts.reach, kernel_charts.examples, spectrum_charts.eigenvalues, spectrum_charts.memory]


def synthetic(layers: int = 1, channels: int = 128, lags: int = 784, modes: int = 32) -> xr.Dataset:
    """An inspection of any size, without a model."""
    rng = np.random.default_rng(0)
    sizes = {"stage": 2, "layer": layers, "channel": channels, "direction": 2, "mode": modes, "lag": lags}
    dims = {
        "kernel": ("stage", "layer", "channel", "direction", "lag"),
        "energy_lag": ("stage", "layer", "channel", "direction"),
        "weight": ("stage", "layer", "channel", "direction", "mode"),
        **dict.fromkeys(("decay_rate", "timescale", "frequency"), ("stage", "layer", "channel", "mode")),
    }
    values = {name: rng.uniform(0.01, 0.5, [sizes[dim] for dim in axes]) for name, axes in dims.items()}
    coords = index("stage", STAGES) | index("direction", DIRECTIONS)
    coords |= {name: part for dim in ("layer", "channel", "mode", "lag") for name, part in _ticks(dim, sizes).items()}
    return xr.Dataset({name: labelled(name, dims[name], values[name]) for name in dims}, coords)


def _ticks(dim: str, sizes: dict[str, int]) -> dict[str, xr.Variable]:
    return index(dim, range(sizes[dim]))


@pytest.mark.parametrize("draw", CHARTS)
@pytest.mark.parametrize(
    "size", [{}, {"layers": 12, "channels": 256, "lags": 4096}, {"channels": 1, "lags": 1, "modes": 1}]
)
def test_no_chart_embeds_more_rows_than_a_browser_bears(draw, size):
    assert 0 < len(rows(draw(synthetic(**size)))) <= theme.MOST_ROWS


def test_what_was_thinned_is_said_and_the_extremes_are_kept():
    dataset = synthetic()
    dataset.kernel[1, 0, 77, 0, 700] = 9.0
    dataset.decay_rate[1, 0, 3, 3] = 25.0
    dataset.frequency[0, 0, 5, 5] = 0.0
    reach, cloud = kernel_charts.reach(dataset), spectrum_charts.eigenvalues(dataset)
    assert "Thinned: 784 lags in 200 bins" in reach.caption
    assert max(row["largest"] for row in rows(reach)) == 9.0
    assert "of 8,192 modes are drawn" in cloud.caption
    assert max(row["decay_rate"] for row in rows(cloud)) == 25.0
    assert min(row["frequency"] for row in rows(cloud)) == 0.0


def test_what_was_not_thinned_is_drawn_as_it_is(checkpoint):
    dataset = inspection(checkpoint, 20)
    figure = kernel_charts.examples(dataset)
    assert "All 20 lags are drawn" in figure.caption
    drawn = [row for row in rows(figure) if row["stage"] == "learned" and row["layer"] == 1 and row["lag"] == 0]
    kernel = dataset.kernel.sel(stage="learned", layer=1, direction="forward", lag=0).values
    assert {row["low"] for row in drawn} <= set(kernel)
    assert all(row["low"] == row["high"] for row in drawn)


def test_a_fit_is_drawn_over_the_channels_that_are_examples(checkpoint):
    dataset = inspection(checkpoint, 20)
    channels = kernel_charts.drawn(dataset)
    fit = best_fits(checkpoint, "hippo-legs", 20, channels)
    figure = kernel_charts.examples(dataset, fit)
    assert figure.title.endswith("what hippo-legs makes of them")
    drawn = [row for row in rows(figure) if row["stage"] == "best fit of hippo-legs" and row["lag"] == 0]
    assert {row["channel"] for row in drawn} == set(channels)
    for row in drawn:
        found = fit.kernel.sel(layer=row["layer"], channel=row["channel"], direction="forward", lag=0)
        assert row["low"] == row["high"] == found


@given(length=st.integers(1, 20_000), most=st.integers(1, 300))
def test_bins_cover_every_lag_once(length, most):
    starts = thin.lag_bins(length, most)
    assert starts[0] == 0
    assert 1 <= len(starts) <= most
    assert (np.diff(starts) > 0).all()
    assert starts[-1] < length
    widths = np.diff([*starts, length])
    assert widths.sum() == length
    assert length > most or (widths == 1).all()


@given(points=st.integers(0, 400), most=st.integers(4, 100), seed=st.integers(0, 99))
def test_a_thinned_cloud_keeps_its_rim_and_draws_nothing_that_is_not_finite(points, most, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, points))
    x[rng.uniform(size=points) < 0.1] = np.nan
    y[rng.uniform(size=points) < 0.1] = np.inf
    chosen = thin.cloud(x, y, most)
    finite = np.isfinite(x) & np.isfinite(y)
    assert len(chosen) <= most
    assert finite[chosen].all()
    if finite.any():
        assert (x[chosen].min(), x[chosen].max()) == (x[finite].min(), x[finite].max())
        assert (y[chosen].min(), y[chosen].max()) == (y[finite].min(), y[finite].max())


def test_every_axis_has_a_title_and_a_unit(checkpoint):
    dataset = inspection(checkpoint, 20)
    titles = {title for draw in CHARTS for title in axis_titles(theme.spec(draw(dataset).chart)) if "(" in title}
    assert titles == {kernel_charts.SIGNED_LAG, "decay rate (1/step)", "frequency (cycles/step)", "timescale (steps)"}


def test_a_model_keeps_its_colour():
    assert {theme.model_colour(name) for name in MIXERS} <= set(theme.PALETTE)
    assert len({theme.model_colour(name) for name in MIXERS}) == min(len(MIXERS), len(theme.PALETTE))
    assert theme.model_colour("nobody's") == theme.GREY


@pytest.mark.parametrize("draw", CHARTS)
def test_nan_and_infinity_reach_no_specification(draw):
    dataset = synthetic(channels=8, lags=20, modes=4)
    for name in dataset.data_vars:
        dataset[name].values.flat[::7] = np.nan
        dataset[name].values.flat[3] = np.inf
    strict_json(json.dumps(theme.spec(draw(dataset).chart)))


def test_a_page_of_a_large_model_is_light_and_opens_without_complaint(tmp_path, browse):
    figures = [draw(synthetic()) for draw in CHARTS]
    page.write(tmp_path / "page.html", "Kernels", ["of a large model"], figures)
    assert (tmp_path / "page.html").stat().st_size < 6e6
    document, complaints = browse(tmp_path / "page.html")
    assert complaints == []
    assert document.count("<svg") >= len(figures)
    assert "Thinned: 784 lags" in document
    assert re.findall(r"(?:src|href)=\"(?:https?:)?//", document) == []


def test_a_page_with_missing_values_and_hostile_text_opens_without_complaint(tmp_path, browse):
    dataset = synthetic(channels=8, lags=20, modes=4)
    for name in dataset.data_vars:
        dataset[name].values.flat[::7] = np.nan
    figures = [draw(dataset) for draw in CHARTS]
    text = "</script><script>throw 1</script> & <b>"
    table = page.Table(text, [text], [[text]], text)
    hostile = kernel_charts.alt.Chart(pd.DataFrame({"name": [text, None], "value": [1.0, np.nan]}))
    hostile = hostile.mark_point().encode(x="name:N", y="value:Q").properties(title=text)
    page.write(tmp_path / "page.html", text, [text], [*figures, theme.Figure(text, hostile, text)], [table])
    document, complaints = browse(tmp_path / "page.html")
    assert complaints == []
    assert "This chart failed" not in document.split("<script", 1)[0]
    assert document.count("<svg") >= 5
    assert "<b>" not in document


def test_a_foreign_page_stays(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<html>mine</html>")
    with pytest.raises(BadConfig, match="not written by ssm-priors"):
        page.write(path, "Title", [], [])
    assert path.read_text() == "<html>mine</html>"
    path.unlink()
    page.write(path, "Title", [], [])
    page.write(path, "Title", ["again"], [])
    assert "again" in path.read_text()
