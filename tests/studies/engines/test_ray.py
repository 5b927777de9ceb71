"""A cluster that is not there is refused at once and in words."""

from __future__ import annotations

import socket
from importlib.util import find_spec

import pytest

from ssm_priors.errors import BadConfig
from ssm_priors.studies.engines.engine import Workers
from ssm_priors.studies.engines.ray import RayEngine


@pytest.mark.skipif(not find_spec("ray"), reason="ray is not installed")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens_is_refused(scheme):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(BadConfig, match="no Ray cluster answers"):
        RayEngine(Workers(count=1, address=f"{scheme}127.0.0.1:{port}"))
