"""A document in every format: one function each, with no decision about what is said."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from ssm_priors.analyses.charts.theme import FONT
from ssm_priors.analyses.schema import MADE_BY
from ssm_priors.studies.report.document import Document, Figure, Listing, Names, Paragraph, Table
from ssm_priors.studies.report.pictures import inline

MAIN = "content"
"""Where the link that skips the contents leads to."""


def to_html(document: Document, drawn: Mapping[str, str]) -> str:
    """One page that needs neither network nor scripts; all text in it is escaped.

    Args:
        document: the report.
        drawn: a figure's name -> its SVG.
    """
    environment = Environment(
        loader=PackageLoader("ssm_priors.studies.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["section_kind"] = lambda block, kind: type(block).__name__ == kind
    pictures = {figure.name: inline(figure, drawn[figure.name]) for figure in document.figures}
    names = Names(MAIN, *pictures)
    return environment.get_template("template.html").render(
        document=document,
        main=MAIN,
        anchors=[names.new(section.title) for section in document.sections],
        pictures=pictures,
        made_by=MADE_BY,
        font=FONT,
    )


# --- Markdown --------------------------------------------------------------------------------------------------------


def to_markdown(document: Document) -> str:
    """The same for a repository or an issue; figures are linked as `figures/NAME.svg`."""
    parts = [f"<!-- {MADE_BY} -->", f"# {_md(document.title)}"]
    for section in document.sections:
        parts += [f"## {_md(section.title)}", *(_block(block) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def _block(block: Paragraph | Listing | Table | Figure) -> str:
    return MARKDOWN[type(block)](block)


def _paragraph(paragraph: Paragraph) -> str:
    lead = f"**{_md(paragraph.lead)}** " if paragraph.lead else ""
    return lead + _md(paragraph.text)


def _listing(listing: Listing) -> str:
    fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall(r"`+", listing.text)), default=0))
    return f"{_md(listing.title)}:\n\n{fence}\n{listing.text.rstrip()}\n{fence}"


def _table(table: Table) -> str:
    titles = [_md(column.title) for column in table.columns]
    rules = ["---:" if column.kind == "number" else "---" for column in table.columns]
    rows = [[_strong(_md(cell.text), cell.tone == "strong") for cell in cells] for cells in table.rows]
    lines = ["| " + " | ".join(cells) + " |" for cells in (titles, rules, *rows)]
    caption = [f"\n{_md(table.caption)}"] if table.caption else []
    return "\n".join([f"### {_md(table.title)}\n", *lines, *caption])


def _strong(text: str, wanted: bool) -> str:
    return f"**{text}**" if wanted and text else text


def _figure(figure: Figure) -> str:
    picture = f"![{_md(figure.alt)}](figures/{figure.name}.svg)"
    return f"### {_md(figure.title)}\n\n{picture}\n\n{_md(figure.caption)}"


MARKDOWN: dict[type, Callable] = {Paragraph: _paragraph, Listing: _listing, Table: _table, Figure: _figure}


def _md(text: str) -> str:
    """Text that no Markdown reader takes for anything else, on one line."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~!$])", r"\\\1", plain)


# --- tables ----------------------------------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """The table with its column titles, as text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    writer.writerows([[cell.text for cell in cells] for cells in table.rows])
    return text.getvalue()


def to_latex(table: Table) -> str:
    """A table for `\\input`, in the style of booktabs."""
    widths = {"number": "r", "text": "p{0.35\\linewidth}"}
    columns = "".join(widths.get(column.kind, "l") for column in table.columns)
    head = " & ".join(_tex(column.title) for column in table.columns)
    rows = [" & ".join(_tex(cell.text) for cell in cells) + r" \\" for cells in table.rows]
    return "\n".join(
        [
            f"% {MADE_BY}; needs \\usepackage{{booktabs}}",
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{_tex(f'{table.title}. {table.caption}'.strip())}}}",
            f"\\label{{tab:{table.name}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *([head + r" \\", r"\midrule"] if table.is_headed else []),
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


TEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the start of a row, \\ would take it for a length
    "]": "{]}",
    '"': r"\textquotedbl{}",
    "−": "$-$",
    "×": r"$\times$",
}
"""What LaTeX would not print as it stands."""


def _tex(text: str) -> str:
    """Text that LaTeX prints as it is, on one line; a negative number has a minus, not a hyphen."""
    plain = "".join(TEX.get(char, char) for char in " ".join(text.split()))
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", plain)
