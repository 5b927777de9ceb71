from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from png_files import chunk, png

from ssm_priors.errors import BadData
from ssm_priors.tasks.png import check, read

SIDE = 6
IMAGE = np.arange(SIDE**2, dtype=np.uint8).reshape(SIDE, SIDE) * 7


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("png") / "a.png"


@given(
    values=st.lists(st.integers(0, 255) | st.just(0), min_size=SIDE**2, max_size=SIDE**2),
    kinds=st.lists(st.integers(0, 4), min_size=SIDE, max_size=SIDE),
    parts=st.integers(1, 4),
)
def test_every_filter_is_undone(path, values, kinds, parts):
    image = np.array(values, np.uint8).reshape(SIDE, SIDE)
    path.write_bytes(png(image, kinds, parts=parts))
    np.testing.assert_array_equal(read(path, SIDE), image)
    assert check(path, SIDE) == ""


@pytest.mark.parametrize("kind", range(5))
def test_each_filter_in_a_dark_and_in_a_bright_image(path, kind):
    for image in (IMAGE, np.zeros_like(IMAGE), np.full_like(IMAGE, 255), IMAGE.T, 255 - IMAGE):
        path.write_bytes(png(image, [kind] * SIDE))
        np.testing.assert_array_equal(read(path, SIDE), image)


def bomb() -> bytes:
    huge = zlib.compress(bytes(2**24))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", huge) + chunk(b"IEND", b"")


GOOD = png(IMAGE)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"GIF89a", "not a PNG file"),
        (GOOD[:-20], "cut short"),
        (GOOD[:30], "cut short"),
        (GOOD[:8], "cut short"),
        (GOOD[:60] + bytes([GOOD[60] ^ 1]) + GOOD[61:], "checksum is wrong"),
        (png(IMAGE, colour=2), "colour type 2"),
        (png(IMAGE, depth=4), "of 4 bits"),
        (png(IMAGE[:5, :5]), "5 x 5 pixels"),
        (GOOD[:8] + GOOD[33:], "does not begin with a header"),
        (bomb(), f"not the {SIDE * (SIDE + 1)} bytes"),
        (GOOD[:8] + GOOD[8:33] + chunk(b"IDAT", b"none") + GOOD[-12:], "cannot be decompressed"),
        (GOOD[:8] + GOOD[8:33] + GOOD[-12:], f"not the {SIDE * (SIDE + 1)} bytes"),
    ],
)
def test_what_is_no_whole_grey_image_is_refused(path, content, words):
    path.write_bytes(content)
    assert words in check(path, SIDE)
    with pytest.raises(BadData, match=str(path)):
        read(path, SIDE)


def test_an_unknown_filter_is_refused(path):
    lines = bytes([5, *range(SIDE)]) * SIDE
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))
    assert "a line has filter 5" in check(path, SIDE)


def test_a_missing_file_and_a_huge_one_are_refused(path, monkeypatch):
    assert "cannot be read" in check(path.with_name("none.png"), SIDE)
    path.write_bytes(GOOD)
    monkeypatch.setattr("ssm_priors.tasks.png.LARGEST", 50)
    assert "are too many" in check(path, SIDE)
