"""Figures as pictures: SVG, PNG and PDF, drawn here once, without a browser.

The SVG that stands inside a page has a tooltip at every mark (an SVG title: no script is needed for it), one text for
whoever does not see it, and identifiers of its own, since all pictures of a page share one name space.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import altair as alt
import vl_convert

from ssm_priors.analyses.charts.theme import spec
from ssm_priors.studies.report.document import Figure

PICTURE_FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"
"""Fonts of the same widths: what is measured here must fit where the picture is seen."""
PNG_SCALE = 2.0
"""Pixels of a PNG a pixel of the chart."""
SVG = "http://www.w3.org/2000/svg"
CURVES = ("line mark", "area mark")
"""Marks that stand for many rows: a tooltip could tell of one alone."""


def draw(figure: Figure) -> str:
    """A figure's chart as SVG."""
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    drawn = spec(figure.chart)
    drawn["config"] |= {"font": PICTURE_FONT}
    svg: str = vl_convert.vegalite_to_svg(drawn, vl_version=version)
    return svg


def to_png(svg: str) -> bytes:
    """The same picture in pixels."""
    png: bytes = vl_convert.svg_to_png(svg, scale=PNG_SCALE)
    return png


def to_pdf(svg: str) -> bytes:
    """The same picture for print."""
    pdf: bytes = vl_convert.svg_to_pdf(svg)
    return pdf


def inline(figure: Figure, svg: str) -> str:
    """A drawn figure as an element of an HTML page."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg)
    for element in list(root.iter()):
        _with_tooltip(element)
        for key, value in element.attrib.items():
            element.set(key, _own_names(key, value, figure.name))
    root.set("role", "img")
    root.set("aria-label", figure.alt)
    return ElementTree.tostring(root, encoding="unicode")


def _with_tooltip(element: ElementTree.Element) -> None:
    """What a mark says to screen readers becomes what it says to pointers; the picture as a whole speaks to readers."""
    label, kind = element.attrib.pop("aria-label", ""), element.attrib.pop("aria-roledescription", "")
    role = element.attrib.pop("role", "")
    if label and role == "graphics-symbol" and kind not in CURVES:
        title = ElementTree.Element(f"{{{SVG}}}title")
        title.text = label
        element.insert(0, title)


def _own_names(key: str, value: str, name: str) -> str:
    """Identifiers, and references to them, under a figure's own name."""
    if key == "id":
        return f"{name}-{value}"
    return re.sub(r"^url\(#(.*)\)$", rf"url(#{name}-\1)", value)
