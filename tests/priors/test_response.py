from __future__ import annotations

import numpy as np
import pytest
from golden import arrays, modes
from hypothesis import given
from hypothesis import strategies as st
from strategies import diagonal_ssms

from ssm_priors.errors import BadConfig
from ssm_priors.priors import response
from ssm_priors.priors.discretise import zoh


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


def test_a_mode_that_does_not_decay_never_falls():
    np.testing.assert_array_equal(response.timescale(np.array([0j, -0.0 + 1j, -0.5 + 0j])), [np.inf, np.inf, 2])


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


@given(ssm=diagonal_ssms())
def test_the_frequency_response_is_the_transform_of_a_long_kernel(ssm):
    log_z, gain = zoh(np.minimum(ssm.A.real, -5) + 1j * ssm.A.imag, ssm.dt)
    length = int(40 / -log_z.real.max()) + 1
    frequencies = np.array([0.0, 0.013, 0.25, 0.5])
    turns = np.exp(-2j * np.pi * np.outer(np.arange(length), frequencies))
    expected = response.kernel(ssm.C * gain, log_z, length) @ turns
    found = response.frequency_response(ssm.C * gain, log_z, frequencies)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11 * np.abs(ssm.C * gain).sum())


def test_the_response_of_one_mode_by_hand():
    C, log_z = np.array([[0.5 + 0j]]), np.log(np.array([[0.9 + 0j]]))
    found = response.frequency_response(C, log_z, np.array([0, 0.5]))
    np.testing.assert_allclose(found[0], [1 / 0.1, 1 / 1.9], rtol=1e-13)
    z = 0.99 * np.exp(0.3j)
    at_its_peak = response.frequency_response(C, np.log([[z]]), np.array([0.3 / (2 * np.pi)]))[0, 0]
    assert at_its_peak == pytest.approx(0.5 / 0.01 + 0.5 / (1 - 0.99 * np.exp(-0.6j)), rel=1e-12)


@given(ssm=diagonal_ssms(), lag=st.integers(0, 50))
def test_the_tail_energy_is_that_of_a_long_kernel(ssm, lag):
    log_z, gain = zoh(np.minimum(ssm.A.real, -5) + 1j * ssm.A.imag, ssm.dt)
    C = ssm.C * gain
    length = int(20 / -log_z.real.max()) + 51
    expected = np.square(response.kernel(C, log_z, length)[..., lag:]).sum(-1)
    one_by_one = response.tail_energy(C * 0 + np.abs(C), log_z.real + 0j).max()
    np.testing.assert_allclose(response.tail_energy(C, log_z, lag), expected, rtol=1e-9, atol=1e-13 * one_by_one)


@given(ssm=diagonal_ssms(), share=st.floats(0.05, 0.99))
def test_the_effective_memory_is_the_energy_lag_of_a_kernel_that_is_long_enough(ssm, share):
    log_z, gain = zoh(np.minimum(ssm.A.real, -5) + 1j * ssm.A.imag, ssm.dt)
    kernel = response.kernel(ssm.C * gain, log_z, int(20 / -log_z.real.max()) + 1)
    found, expected = response.effective_memory(ssm.C * gain, log_z, share), response.energy_lag(kernel, share)
    energy = np.square(kernel).cumsum(-1)
    off = found != expected  # only where a lag's energy ends exactly on the share, to rounding
    for index in zip(*np.nonzero(off), strict=True):
        ends = energy[index][min(found[index], expected[index])]
        assert ends == pytest.approx(share * energy[index][-1], rel=1e-9)


@given(decay=st.floats(1e-8, 1), share=st.floats(0.05, 0.99))
def test_the_effective_memory_of_one_real_mode_is_known_in_closed_form(decay, share):
    lag = int(response.effective_memory(np.array([[0.5 + 0j]]), np.array([[-decay + 0j]]), share)[0])
    exact = -np.log1p(-share) / (2 * decay) - 1
    assert exact * (1 - 1e-9) - 1e-6 <= lag <= max(exact * (1 + 1e-9) + 1 + 1e-6, 0)


def test_the_effective_memory_of_silence_is_none():
    silent = response.effective_memory(np.zeros((2, 1, 3), dtype=complex), np.full((1, 3), -0.1 + 1j))
    np.testing.assert_array_equal(silent, [[-1], [-1]])


def test_what_has_no_transform_or_memory_is_refused():
    C, still = np.array([[1 + 0j]]), np.array([[1j]])
    for ask in (lambda: response.frequency_response(C, still, np.zeros(1)), lambda: response.tail_energy(C, still)):
        with pytest.raises(BadConfig, match="decay"):
            ask()
    for share in (0.0, 1.0):
        with pytest.raises(BadConfig, match="share"):
            response.effective_memory(C, np.array([[-1 + 1j]]), share)
