"""Documents in every format: nothing that is written is taken for anything else."""

from __future__ import annotations

import csv
import io
import re

import pytest

from ssm_priors.studies.report import formats
from ssm_priors.studies.report.document import Column, Document, Listing, Paragraph, Section, Table, row, slug

HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(2)> & {{ 7 * 7 }}'

MARKS = r"a | b _c_ *d* `e` <f> [g](h) & \ # ~ $x$ ^ % {i} é −1"


def _tiny(text: str, is_headed: bool = True) -> Document:
    table = Table(
        "tiny", text, [Column(text), Column("n", "number")], [row(text, "-1.5"), row("b", "")], text, is_headed
    )
    return Document(text, [Section(text, [Paragraph(text, text), Listing(text, text + "\n```\n"), table])])


def test_a_markdown_table_has_one_cell_a_cell():
    lines = [line for line in formats.to_markdown(_tiny(MARKS)).splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    assert lines[1] == "| --- | ---: |"


def test_a_listing_is_not_ended_by_what_it_holds():
    text = formats.to_markdown(_tiny("x"))
    assert "\n````\nx\n```\n````\n" in text


def test_csv_reads_back():
    [table] = _tiny(MARKS + '"\n,').tables
    rows = list(csv.reader(io.StringIO(formats.to_csv(table))))
    assert rows == [[MARKS + '"\n,', "n"], [MARKS + '"\n,', "-1.5"], ["b", ""]]


def test_latex_is_escaped_and_in_the_style_of_booktabs():
    [table] = _tiny(MARKS).tables
    text = formats.to_latex(table)
    assert [rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\label{tab:tiny}")] == [True] * 4
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    assert r"\_c\_" in body
    assert r"\textless{}f\textgreater{}" in body
    assert r"\& \textbackslash{} \# \textasciitilde{} \$x\$ \textasciicircum{} \% \{i\}" in body
    assert "$-$1.5" in body
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in rows] == [1, 1, 1]
    assert not re.findall(r"(?<!\\)[#%]|(?<!\\)_", body)


def test_a_table_of_names_and_values_has_no_head_in_latex():
    [table] = _tiny("x", is_headed=False).tables
    assert r"\midrule" not in formats.to_latex(table)


@pytest.mark.parametrize("text", ["../../etc/passwd", "a/b\\c", "", "Ünïcode", HOSTILE, "x" * 500])
def test_a_slug_is_safe_whatever_the_text(text):
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,59}", slug(text))
