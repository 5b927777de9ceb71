from __future__ import annotations

import subprocess
import sys

import netCDF4
import numpy as np
import pytest
import xarray as xr

from ssm_priors.analyses import schema
from ssm_priors.errors import BadConfig, BadData

MODES = ["layer", "channel", "mode"]


def spectra(dtype: type = np.complex128) -> tuple[xr.Dataset, np.ndarray]:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((2, 3, 4)) + 1j * rng.standard_normal((2, 3, 4))).astype(dtype)
    coords = schema.index("layer", range(2)) | schema.index("stage", schema.STAGES)
    return xr.Dataset(schema.split_complex("eigenvalue", MODES, values), coords), values


@pytest.mark.parametrize("format", schema.FORMATS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_come_back_in_a_fresh_process(tmp_path, format, dtype):
    dataset, values = spectra(dtype)
    schema.write(dataset, tmp_path / f"data.{format}", format)
    np.save(tmp_path / "values.npy", values)
    code = (
        "import sys, numpy as np; from pathlib import Path; from ssm_priors.analyses import schema\n"
        "joined = schema.join_complex(schema.read(Path(sys.argv[1])), 'eigenvalue')\n"
        "values = np.load(sys.argv[2]); assert joined.dtype == values.dtype; assert (joined.values == values).all()"
    )
    files = [str(tmp_path / f"data.{format}"), str(tmp_path / "values.npy")]
    said = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_a_file_opens_in_plain_netcdf4(tmp_path):
    dataset, values = spectra()
    schema.write(dataset, tmp_path / "data.nc")
    with netCDF4.Dataset(tmp_path / "data.nc") as file:
        real = file["eigenvalue_real"]
        assert real.dimensions == ("layer", "channel", "mode")
        assert real.units == "1/unit of time"
        assert (np.asarray(real[:]) == values.real).all()


@pytest.mark.parametrize("format", schema.FORMATS)
def test_a_file_of_this_package_is_replaced_and_leaves_nothing_beside(tmp_path, format):
    path = tmp_path / f"data.{format}"
    first, _ = spectra()
    second = first.assign(eigenvalue_real=first.eigenvalue_real + 1)
    for dataset in (first, second):
        schema.write(dataset, path, format)
    assert schema.read(path).drop_attrs(deep=False).identical(second)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("format", schema.FORMATS)
@pytest.mark.parametrize("kind", ["text", "folder", "other dataset"])
def test_what_stands_there_and_is_not_ours_stays(tmp_path, format, kind):
    path = tmp_path / f"data.{format}"
    if kind == "text":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    elif format == "nc":
        xr.Dataset({"x": 1}).to_netcdf(path)
    else:
        xr.Dataset({"x": 1}).to_zarr(path, zarr_format=2)
    before = sorted(str(file) for file in tmp_path.rglob("*"))
    with pytest.raises(BadConfig, match="not written by ssm-priors"):
        schema.write(spectra()[0], path, format)
    assert sorted(str(file) for file in tmp_path.rglob("*")) == before


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    dataset, _ = spectra()
    schema.write(dataset, tmp_path / "data.zarr", "zarr")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(xr.Dataset, "to_zarr", fail)
    with pytest.raises(OSError, match="disk full"):
        schema.write(dataset + 1, tmp_path / "data.zarr", "zarr")
    monkeypatch.undo()
    assert schema.read(tmp_path / "data.zarr").equals(dataset)


def test_names_and_units_outside_the_schema_are_refused():
    good = xr.Dataset({"dt": schema.labelled("dt", ["layer"], np.ones(2))})
    assert schema.check(good) is good
    with pytest.raises(BadData, match=r"unknown dimension 'layers'\. Did you mean layer"):
        schema.check(good.rename_dims(layer="layers"))
    with pytest.raises(BadData, match=r"unknown variable 'decay_rates'\. Did you mean decay_rate"):
        schema.check(good.rename_vars(dt="decay_rates"))
    with pytest.raises(BadData, match="has the unit 'seconds', 'unit of time/step' was expected"):
        schema.check(good.assign(dt=good.dt.assign_attrs(units="seconds")))
    with pytest.raises(BadData, match="has the unit ''"):
        schema.check(good.drop_attrs())
    with pytest.raises(BadData, match="complex"):
        schema.check(good.assign(dt=good.dt.astype(complex).assign_attrs(good.dt.attrs)))


def test_what_cannot_be_read_says_so(tmp_path):
    (tmp_path / "text.nc").write_text("no data")
    with pytest.raises(BadData, match="not a dataset"):
        schema.read(tmp_path / "text.nc")
    with pytest.raises(BadData, match="no such file"):
        schema.read(tmp_path / "absent.nc")
    with pytest.raises(BadConfig, match=r"unknown format 'csv'\. Known: nc, zarr"):
        schema.write(xr.Dataset(), tmp_path / "data.csv", "csv")
    with pytest.raises(BadData, match="no 'eigenvalue_real'"):
        schema.join_complex(xr.Dataset(), "eigenvalue")
