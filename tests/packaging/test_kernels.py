"""Installing builds the compiled kernels where it finds a compiler, and works without one, saying what is lacking."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ssm_priors.ops import fused

ROOT = Path(__file__).resolve().parents[2]
CHOICE = "from ssm_priors.ops import backend; print(backend.__file__); print(backend.chosen())"
PROCESSOR = fused.OBJECTS["x86-64-v3"] <= fused._processor_flags() and sys.platform == "linux"


@pytest.fixture
def source(tmp_path) -> Path:
    """What of the checkout an installation reads, without anything built before."""
    folder = tmp_path / "source"
    hidden = shutil.ignore_patterns("*.so", "__pycache__", "build", "*.egg-info")
    for name in ("ssm_priors", "cli", "analyses", "studies"):
        shutil.copytree(ROOT / name, folder / name, ignore=hidden)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def built(source: Path, tmp_path: Path, **environment: str) -> set[str]:
    """Build a wheel, unpack it as `site`, and give the kernels in it."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*command, str(source)], check=True, capture_output=True, env=os.environ | environment)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
        return {Path(name).name for name in archive.namelist() if name.endswith(".so")}


def chosen(site: Path, cwd: Path) -> str:
    """Which backend a process takes that finds the package there."""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); {CHOICE}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SSM_PRIORS_BACKEND": "auto"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True, env=environment
    )
    where, said = ran.stdout.splitlines()
    assert Path(where).is_relative_to(site)
    return said


def test_without_a_compiler_it_installs_and_says_what_it_lacks(source, tmp_path):
    assert built(source, tmp_path, CC="false", CXX="false") == set()
    said = chosen(tmp_path / "site", tmp_path)
    assert said.startswith("torch (")
    assert "no compiled kernels" in said or not PROCESSOR


@pytest.mark.skipif(not (PROCESSOR and shutil.which("g++")), reason="no g++, or a processor without AVX2")
def test_an_editable_installation_has_them_beside_the_sources(source, tmp_path):
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]  # what `pip install -e` runs
    subprocess.run(command, check=True, capture_output=True, cwd=source)
    assert chosen(source, tmp_path).startswith("fused (x86-64-v")
    header = source / "ssm_priors/ops/native/lanes.hpp"
    header.write_text(header.read_text() + "// changed\n")
    assert "install again" in chosen(source, tmp_path)
