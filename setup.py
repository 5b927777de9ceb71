"""The rooms beside ssm_priors/ install inside it: cli/ is imported as ssm_priors.cli."""

from setuptools import find_packages, setup

ROOMS = {"ssm_priors": "ssm_priors"} | {f"ssm_priors.{room}": room for room in ("cli", "analyses", "studies")}

setup(
    package_dir=ROOMS,
    packages=[f"{room}.{sub}".rstrip(".") for room, folder in ROOMS.items() for sub in ["", *find_packages(folder)]],
)
