"""The rooms beside ssm_priors/ install inside it: cli/ is imported as ssm_priors.cli. Compiled kernels are optional.

`ssm_priors/ops/native/` becomes a plain shared library for each processor level of `ssm_priors/ops/fused.py`, without
Python's or torch's headers. Where there is no C++ compiler, or it fails, or the processor is another, the package
installs without them and says so when it runs; an editable install puts them beside the sources.
"""

import hashlib
import platform
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOMS = {"ssm_priors": "ssm_priors"} | {f"ssm_priors.{room}": room for room in ("cli", "analyses", "studies")}
NATIVE = Path("ssm_priors", "ops", "native")
LANES = {"v4": 16, "v3": 8}
# No -ffast-math: exp() relies on rounding as written. OpenMP's symbols come from the runtime that torch has loaded, so
# that both share one pool of threads: compiled with -fopenmp, linked without.
FLAGS = "-std=c++17 -O3 -fopenmp -ffp-contract=fast -fno-math-errno -fno-trapping-math -fvisibility=default -Wno-psabi"


class Kernels(build_ext):
    """Shared libraries with plain names: no Python module, so no tag of a Python version."""

    def get_ext_filename(self, fullname: str) -> str:
        """Where a library goes, below the folder of the build."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        """Build one, with its objects in a folder of its own: all are made from the same sources, but not alike."""
        kept, self.build_temp = self.build_temp, str(Path(self.build_temp, ext.name))
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # should it fail, nothing old takes its place
        self.force = True
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = kept


def digest() -> str:
    """Of the sources; a library that was made from others is not loaded."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(NATIVE.glob("*.[ch]pp")))).hexdigest()


def kernels() -> list[Extension]:
    """A library for each processor level, where the platform is one that they are written for."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    return [
        Extension(
            f"ssm_priors.ops._fused_{level}",
            sources=[str(path) for path in sorted(NATIVE.glob("*.cpp"))],
            depends=[str(path) for path in sorted(NATIVE.glob("*.hpp"))],
            extra_compile_args=[*FLAGS.split(), f"-march=x86-64-{level}", f"-DLANES={lanes}", f'-DSOURCE="{digest()}"'],
            libraries=["m"],
            language="c++",
            optional=True,
        )
        for level, lanes in LANES.items()
    ]


setup(
    package_dir=ROOMS,
    packages=[f"{room}.{sub}".rstrip(".") for room, folder in ROOMS.items() for sub in ["", *find_packages(folder)]],
    ext_modules=kernels(),
    cmdclass={"build_ext": Kernels},
)
