"""A study's results for people (`report.html`, `report.md`), for papers (`tables/`, `figures/`), and for programs.

The content is assembled once (`content`), drawn once (`pictures`), and put into every format (`formats`). Charts stand
in the page as SVG: it opens anywhere, prints, runs no code, and still tells a mark's numbers to a pointer that rests on
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from ssm_priors.studies import results as runs
from ssm_priors.studies.findings import Findings
from ssm_priors.studies.grid import Study
from ssm_priors.studies.report.content import Extra, assemble
from ssm_priors.studies.report.document import Document
from ssm_priors.studies.report.files import listed, write_all
from ssm_priors.studies.report.formats import to_csv, to_html, to_latex, to_markdown
from ssm_priors.studies.report.pictures import draw, to_pdf, to_png


def write(
    study: Study, results: xr.Dataset, out: Path, findings: Findings, extra: Sequence[Extra] = ()
) -> dict[str, Path]:
    """Write a study's report into its folder.

    Args:
        study: what was asked.
        results: what `results.collect` gives.
        out: the study's folder, whose runs' learning curves are read.
        findings: what the results say.
        extra: sections of others: title, figures, tables.

    Returns:
        What it is -> path: the page, the Markdown, the table of runs, the folders of tables and figures.

    Raises:
        BadConfig: something that no report wrote stands where a file should go; nothing is written then.
    """
    out = Path(out)
    document = assemble(study, results, findings, runs.curves(results, out), extra)
    table = runs.table(results).to_csv(index=False, lineterminator="\n")
    write_all(out, {"results.csv": table.encode(), **contents(document)})
    places = {"report": "report.html", "markdown": "report.md", "table": "results.csv"}
    return {what: out / name for what, name in places.items()} | {name: out / name for name in ("tables", "figures")}


def written(out: Path) -> list[Path]:
    """Every file of the report in a study's folder; none if there is no report."""
    return [Path(out) / name for name in sorted(listed(Path(out)))]


def contents(document: Document) -> dict[str, bytes]:
    """Every file of a report: path -> what it holds."""
    drawn = {figure.name: draw(figure) for figure in document.figures}
    files = {"report.html": to_html(document, drawn).encode(), "report.md": to_markdown(document).encode()}
    for table in document.tables:
        files[f"tables/{table.name}.csv"] = to_csv(table).encode()
        files[f"tables/{table.name}.tex"] = to_latex(table).encode()
    for name, svg in drawn.items():
        files |= {f"figures/{name}.svg": svg.encode(), f"figures/{name}.png": to_png(svg)}
        files[f"figures/{name}.pdf"] = to_pdf(svg)
    return files
