from __future__ import annotations

import subprocess
import sys

import pytest

from ssm_priors import registry
from ssm_priors.errors import BadConfig, SsmPriorsError, UnknownName
from ssm_priors.registry import INITS, MIXERS, OBJECTIVES, TASKS, Registry, source, summary

ALL = [INITS, MIXERS, OBJECTIVES, TASKS]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with two parts, one a file."""
    folder = tmp_path / "parts_of_a_test"
    folder.mkdir()
    lines = "from parts_of_a_test import HERE\n\n@HERE.register('{0}')\nclass Part:\n    '''Part {0}.'''\n"
    (folder / "__init__.py").write_text("from ssm_priors.registry import Registry\nHERE = Registry('part', __name__)\n")
    (folder / "one.py").write_text(lines.format("one"))
    (folder / "two.py").write_text(lines.format("two"))
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("parts_of_a_test")]:
        del sys.modules[name]


def test_a_part_is_found_by_scanning_its_package(package):
    from parts_of_a_test import HERE

    assert "parts_of_a_test.one" not in sys.modules
    assert list(HERE) == ["one", "two"]
    assert len(HERE) == 2
    assert "one" in HERE
    assert "three" not in HERE
    assert summary(HERE["two"]) == "Part two."


def test_one_new_file_is_one_new_part(package):
    (package / "three.py").write_text((package / "one.py").read_text().replace("one", "three"))
    from parts_of_a_test import HERE

    assert list(HERE) == ["one", "three", "two"]


def test_two_parts_of_one_name_are_refused(package):
    (package / "three.py").write_text((package / "one.py").read_text())
    from parts_of_a_test import HERE

    with pytest.raises(SsmPriorsError, match="two parts are called 'one'"):
        list(HERE)


def test_another_distribution_adds_a_part_by_an_entry_point(package, monkeypatch):
    from parts_of_a_test import HERE

    class Plugin:
        @staticmethod
        def load():
            HERE.register("from-outside")(int)

    monkeypatch.setattr(registry, "entry_points", lambda group: [Plugin] if group == "ssm_priors.parts" else [])
    assert HERE["from-outside"] is int
    assert list(HERE) == ["from-outside", "one", "two"]


FAMILY = """
from functools import cache
from parts_of_a_test import HERE

@HERE.register("many")
class Many:
    "Part of many."
    argument = "NAME"

    def __init__(self, name):
        self.name = name

    @classmethod
    @cache
    def member(cls, argument):
        return cls(argument)

    @staticmethod
    def spelled(argument):
        return argument.lower()

    @staticmethod
    def ready():
        return "yes: any"
"""


@pytest.fixture
def family(package) -> Registry:
    """The same with a family of parts."""
    (package / "many.py").write_text(FAMILY)
    from parts_of_a_test import HERE

    return HERE


def test_a_family_is_looked_up_by_an_argument_and_gives_the_same_part_for_the_same_one(family):
    assert family["many:a:b/c d"].name == "a:b/c d"
    assert family["many:a"] is family["many:a"]
    assert family["many:a"] is not family["many:b"]
    assert summary(family["many:a"]) == "Part of many."


def test_a_family_is_no_part_itself(family):
    assert list(family) == ["one", "two"]
    assert len(family) == 2
    assert list(family.families) == ["many:NAME"]
    assert [name in family for name in ("many", "many:", "many:a", "one", "one:a", "none:a")] == [
        *(False, False, True, True, False, False)
    ]
    for name in ("many", "many:"):
        with pytest.raises(BadConfig, match=rf"part '{name}' is one of many: many:NAME was expected \(yes: any\)"):
            family[name]


def test_a_misspelled_family_comes_with_the_nearest(family):
    with pytest.raises(UnknownName, match=r"unknown part 'mani:a'\. Did you mean many:a\?"):
        family["mani:a"]
    with pytest.raises(UnknownName, match=r"unknown part 'one:a'\. Did you mean one\?"):
        family["one:a"]
    with pytest.raises(UnknownName, match=r"Known: many:NAME, one, two\."):
        family["completely different"]


def test_a_name_is_recorded_as_its_family_spells_it(family):
    assert [family.spelled(name) for name in ("many:A", "many", "one", "One:A")] == ["many:a", "many", "one", "One:A"]


def test_an_unknown_name_comes_with_the_nearest_or_with_all():
    with pytest.raises(UnknownName, match=r"unknown model 's4dd'\. Did you mean s4d\?"):
        MIXERS["s4dd"]
    with pytest.raises(UnknownName, match=r"Known: .*s4d.*, transformer\."):
        MIXERS["completely different"]


def test_an_empty_registry_says_so():
    assert str(UnknownName("part", "x", [])) == "unknown part 'x'. No part is registered."


@pytest.mark.parametrize("parts", ALL, ids=lambda parts: parts.kind)
def test_every_part_that_ships_is_there_and_named_in_order(parts):
    names = list(parts)
    assert names
    assert names == sorted(names)
    assert all(name in parts and parts[name] is not None for name in names)


@pytest.mark.parametrize("parts", ALL, ids=lambda parts: parts.kind)
def test_every_part_that_ships_names_its_source(parts):
    for name in parts:
        assert len(source(parts[name])) > 10, name
        assert "\n" not in source(parts[name])


def test_a_source_ends_with_its_paragraph():
    def part():
        """One line.

        Source: a paper,
        in two lines.

        More.
        """

    assert source(part) == "a paper, in two lines."
    assert summary(part) == "One line."
    assert source(Registry) == ""


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'scipy', 'xarray', 'altair', 'sklearn', 'lightning_fabric'}"
    code = f"import sys, ssm_priors, ssm_priors.registry, ssm_priors.config; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
