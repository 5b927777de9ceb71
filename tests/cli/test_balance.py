"""`ssmp data balance`, and the numbers of the docs made again."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ssm_priors.cli import balance
from ssm_priors.cli.app import app

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
ROW = re.compile(r"\| `([^`]+)` \| (train|validation|test) \| (.+) \|")
TOLD: dict[str, dict[str, str]] = {}
for line in DOCS.read_text(encoding="utf-8").splitlines():
    if found := ROW.fullmatch(line):
        TOLD.setdefault(found[1], {})[found[2]] = found[3]

pytestmark = pytest.mark.xdist_group("balance")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def counted(arguments, data):
    said = CliRunner().invoke(app, ["data", "balance", *shlex.split(arguments), "--data-dir", str(data), "--json"])
    assert said.exit_code == 0, said.output
    return json.loads(said.stdout)


@pytest.mark.parametrize("arguments", TOLD)
def test_what_the_docs_tell_is_what_is_counted(arguments, data):
    if arguments.startswith("ucr:") and find_spec("aeon") is None:
        pytest.skip("aeon, whose files these are, is not installed")
    found = counted(arguments, data)
    for split, told in TOLD[arguments].items():
        of = balance.Balance(
            **{name: tuple(each) if isinstance(each, list) else each for name, each in found[split].items()}
        )
        assert " | ".join(balance.row(split, of, found["unit"])[1:]) == told


def test_the_docs_tell_of_generated_shipped_and_archived_tasks():
    assert {"mnist", "digits", "chomsky", "ucr:JapaneseVowels"} <= set(TOLD)
    assert sum(name.startswith(("listops", "pathfinder")) for name in TOLD) >= 2


def test_bars_grow_with_counts_and_nothing_is_blank():
    assert balance.bars((0, 1, 50, 100)) == " ▁▄█"
    assert balance.bars((7,)) == "█"
