from __future__ import annotations

import numpy as np
import pytest
from golden import arrays, modes
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.priors import response


def published(source: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    parts = [source[f"{name}/{key}"] for key in ("A", "B", "C", "log_dt")]
    return modes(*parts, "zoh" if "zoh" in name else "bilinear")


@pytest.mark.parametrize("name", [f"s4d_{rule}{both}" for rule in ("zoh", "bilinear") for both in ("", "_bidir")])
def test_the_kernel_is_the_published_one(name):
    source = {key.removeprefix("kernels/"): value for key, value in arrays().items()}
    C, log_z = published(source, name)
    np.testing.assert_allclose(response.kernel(C, log_z, 64), source[f"{name}/L64/K"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [f"s4d_{rule}{both}" for rule in ("zoh", "bilinear") for both in ("", "_bidir")])
@pytest.mark.parametrize("length", [64, 1000])
def test_the_kernel_is_the_published_one_in_the_full_arrays(name, length, golden):
    with np.load(golden / "kernels.npz") as source:
        C, log_z = published(source, name)
        expected = source[f"{name}/L{length}/K"]
    np.testing.assert_allclose(response.kernel(C, log_z, length), expected, rtol=1e-10, atol=1e-12)


def test_the_shipped_arrays_are_cut_from_the_full_ones(golden):
    with np.load(golden / "s4d_init.npz") as inits, np.load(golden / "layers.npz") as layers:
        np.testing.assert_array_equal(arrays()["init/inv/N64/A"], inits["inv/N64/A"])
        np.testing.assert_array_equal(arrays()["layers/zoh_bidir/y_id"], layers["fftconv_s4d_zoh_bidir/y_id"])


def test_a_real_mode_gives_a_geometric_series():
    kernel = response.kernel(np.array([[0.5 + 0j]]), np.log(np.array([[0.9 + 0j]])), 50)
    np.testing.assert_allclose(kernel[0], 0.9 ** np.arange(50), rtol=1e-13)


def test_decay_timescale_and_frequency_of_a_known_mode():
    log_z = np.array([[-0.01 + 2j * np.pi * 0.125]])
    assert response.decay_rate(log_z)[0, 0] == pytest.approx(0.01)
    assert response.timescale(log_z)[0, 0] == pytest.approx(100)
    assert response.frequency(log_z)[0, 0] == pytest.approx(0.125)


@given(cycles=st.floats(-5, 5))
def test_a_frequency_is_what_samples_of_it_show(cycles):
    found = float(response.frequency(np.array(-0.1 + 2j * np.pi * cycles)))
    assert 0 <= found <= 0.5
    t = np.arange(20)
    np.testing.assert_allclose(np.cos(2 * np.pi * found * t), np.cos(2 * np.pi * cycles * t), atol=1e-11)


def test_the_energy_lag_is_the_first_that_holds_the_share():
    kernel = np.array([[1.0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0], [np.nan, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, -2]])
    np.testing.assert_array_equal(response.energy_lag(kernel, 0.5), [2, -1, -1, 5])
    np.testing.assert_array_equal(response.energy_lag(kernel, 1.0), [5, -1, -1, 5])


@given(decay=st.floats(1e-3, 1), share=st.floats(0.05, 0.99))
def test_the_energy_lag_of_a_geometric_kernel_is_known_in_closed_form(decay, share):
    lags = np.arange(20_000)
    lag = int(response.energy_lag(np.exp(-decay * lags), share))
    exact = -np.log1p(-share) / (2 * decay) - 1  # 1 - z^(2 (lag + 1)) >= share
    assert exact - 1e-6 <= lag <= max(exact + 1 + 1e-6, 0)
