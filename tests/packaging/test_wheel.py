"""The wheel holds exactly the files of the rooms, under one import name, and its scripts run."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ssm_priors.ops import fused

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "ssm_priors": "ssm_priors",
    "cli": "ssm_priors/cli",
    "analyses": "ssm_priors/analyses",
    "studies": "ssm_priors/studies",
}
SHIPPED = {".py", ".toml", ".npz", ".html", ".md", ".typed", ".cpp", ".hpp"}
KERNELS = {"ssm_priors/ops/_fused_v3.so", "ssm_priors/ops/_fused_v4.so"}
"""Built where there is a compiler; test_kernels.py looks at them."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout: the list of files that belong to the project is not known")
    for name in tracked.stdout.splitlines():
        if not (ROOT / name).is_file():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_files_of_the_rooms_and_no_others(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    expected = set()
    for name in tracked.stdout.splitlines():
        room, _, rest = name.partition("/")
        if room in ROOMS and Path(name).suffix in SHIPPED and (ROOT / name).is_file():
            expected.add(f"{ROOMS[room]}/{rest}")
    assert shipped - KERNELS == expected


def test_both_scripts_and_one_import_name_are_declared(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    assert info["top_level.txt"].split() == ["ssm_priors"]
    assert "ssmp = ssm_priors.cli.app:main" in info["entry_points.txt"]
    assert "ssm-priors = ssm_priors.cli.app:main" in info["entry_points.txt"]


def test_the_unpacked_wheel_runs_the_command_and_finds_its_data(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import ssm_priors, ssm_priors.cli.app, ssm_priors.studies.grid\n"
        "from ssm_priors.registry import TASKS\n"
        "assert len(TASKS['mnist'].load(TASKS['mnist'].Config()).train) == 3500\n"
        "from ssm_priors.ops.backend import chosen\n"
        "print(ssm_priors.__file__)\n"
        "print(chosen().name)"
    )
    environment = os.environ | {"SSM_PRIORS_BACKEND": "auto"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
    )
    where, backend = ran.stdout.splitlines()
    assert where == str(tmp_path / "site" / "ssm_priors" / "__init__.py")
    with zipfile.ZipFile(wheel) as archive:
        runs = fused.OBJECTS["x86-64-v3"] <= fused._processor_flags()
        assert (backend == "fused") == (runs and bool(KERNELS & set(archive.namelist())))


def test_a_room_imported_under_its_folder_name_is_refused():
    code = "import cli"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "import this package as ssm_priors.cli" in ran.stderr
