"""A report's files: written whole, and over nothing but what an earlier report left.

`report.json` names every file that a report wrote. What stands at a name and is neither listed there nor bears this
package's mark is somebody's own: then nothing is written at all. Files of the last report that this one does not have
are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ssm_priors import atomic
from ssm_priors.analyses.schema import MADE_BY, foreign

MANIFEST = "report.json"
OURS = re.compile(r"report\.(html|md)|results\.csv|tables/[a-z0-9-]+\.(csv|tex)|figures/[a-z0-9-]+\.(svg|png|pdf)")
"""What a report may consist of: no other file is ever removed, whatever a manifest says."""
MARK = b'<meta name="generator" content="ssm-priors '
HEADER = b"model,init,pretrain,task,"
"""How a page and a `results.csv` of a version without a manifest are known."""
HEAD = 4096
"""Bytes in which they are looked for."""


def write_all(out: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Replace a report.

    Args:
        out: the study's folder.
        contents: path below it, with / -> what it holds.

    Returns:
        The files, in order; `report.json` is not among them.

    Raises:
        BadConfig: something that no report wrote stands at one of the names.
    """
    known = listed(out)
    for name in contents:
        if not _is_ours(out / name, name in known):
            raise foreign(out / name)
    _list(out, {*known, *contents})  # first, so that a report cut short is still known as one
    for name, content in contents.items():
        (out / name).parent.mkdir(exist_ok=True)
        atomic.write(out / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    for name in known - set(contents):
        (out / name).unlink(missing_ok=True)
    _list(out, contents)
    return [out / name for name in contents]


def _list(out: Path, names: Iterable[str]) -> None:
    atomic.write_text(out / MANIFEST, json.dumps({"made_by": MADE_BY, "files": sorted(names)}, indent=1) + "\n")


def listed(out: Path) -> set[str]:
    """The files of the last report, below `out`. Only what a report can consist of is believed.

    Raises:
        BadConfig: the manifest was not written by this package.
    """
    path = out / MANIFEST
    if not path.exists():
        return set()
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        is_ours = manifest["made_by"].startswith("ssm-priors ")
        names = {str(name) for name in manifest["files"]}
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise foreign(path) from None
    if not is_ours:
        raise foreign(path)
    return {name for name in names if OURS.fullmatch(name)}


def _is_ours(path: Path, is_known: bool) -> bool:
    """Whether a path may be written: nothing is there, or a file of an earlier report, in a folder that is no link."""
    if path.is_symlink() or path.parent.is_symlink() or (path.parent.exists() and not path.parent.is_dir()):
        return False
    if is_known or not path.exists():
        return not path.is_dir()
    return path.is_file() and _has_mark(path)


def _has_mark(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.read(HEAD)
    return MARK in head or head.startswith(HEADER)
