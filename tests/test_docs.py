"""README and docs are true: every command they show exists with its options, every name that can be named is told."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from ssm_priors.cli.app import app
from ssm_priors.cli.listing import _models
from ssm_priors.registry import FORMATS, INITS, MIXERS, OBJECTIVES, TASKS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(app).commands
GROUPS = ("data", "study")
COMMANDS |= {f"{group} {name}": command for group in GROUPS for name, command in COMMANDS.pop(group).commands.items()}


def shown(page: Path) -> list[str]:
    """Every `ssmp ...` of a page, from code spans and indented blocks."""
    text = page.read_text(encoding="utf-8")
    spans = re.findall(r"`(ssmp [^`]+)`", text)
    blocks = [line.strip() for line in text.splitlines() if line.startswith("    ") and "ssmp " in line]
    return spans + [part.strip() for line in blocks for part in line.split("&&") if part.strip().startswith("ssmp ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_shown_exists_with_its_options(page):
    for line in shown(page):
        _, name, *rest = shlex.split(line)
        if name in GROUPS:
            name = f"{name} {rest.pop(0)}"
        assert name in COMMANDS, line
        known = {
            option for parameter in COMMANDS[name].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= known | {"--help"}, line


def test_the_pages_show_commands_at_all():
    assert len(shown(ROOT / "README.md")) >= 10


@pytest.mark.parametrize(
    ("registry", "page"),
    [(MIXERS, "models"), (INITS, "models"), (OBJECTIVES, "models"), (TASKS, "tasks"), (FORMATS, "checkpoints")],
)
def test_everything_that_can_be_named_stands_in_the_docs(registry, page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    names = [*registry, *registry.families]
    assert {name for name in names if f"`{name}`" not in text and f"**{name}**" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_table_of_models_is_that_of_the_registry():
    columns = ("name", "parameters", "kernel", "spectrum", "step", "init", "source")
    rows = [
        " | ".join(f"`{row[column]}`" if column == "name" else row[column] for column in columns) for row in _models()
    ]
    assert [f"| {row} |" for row in rows] == [
        line
        for line in (ROOT / "docs" / "models.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and line.count("|") == len(columns) + 1
    ]
