"""Files out of whatever a user brings, and all that can be wrong with it."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
import official_files as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.errors import BadData
from ssm_priors.tasks import members as room
from ssm_priors.tasks.members import members

MOST = 2**20


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "set"
    rng = np.random.default_rng(0)
    for name in ("a/1.txt", "a/2.txt", "b/c/3.txt", "4.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(rng.bytes(int(rng.integers(0, 5000))))
    (place / "b" / "other.bin").write_bytes(rng.bytes(100_000))
    (place / "a" / "empty.txt").write_bytes(b"")
    return place


def texts(path: PurePosixPath) -> str | None:
    return path.name if path.suffix == ".txt" else None


def contents(source: Path) -> dict[str, bytes]:
    with members(source, texts, MOST) as found:
        return {name: found.read(name) for name in found.names()}


def packed(folder: Path, kind: str) -> Path:
    path = folder.parent / f"set.{kind}"
    return official.zipped(folder, path) if kind == "zip" else official.tar(folder, path)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_an_archive_gives_what_its_folder_gives_in_the_same_order(kind, folder):
    expected = contents(folder)
    assert list(expected) == ["1.txt", "2.txt", "3.txt", "4.txt", "empty.txt"]
    assert contents(packed(folder, kind)) == expected
    assert [path.name for path in (folder.parent / "data").iterdir()] == []  # nothing is left there


def test_a_file_by_itself_is_a_source_too(folder):
    assert contents(folder / "4.txt") == {"4.txt": (folder / "4.txt").read_bytes()}


@given(content=st.binary(max_size=300), moves=st.lists(st.tuples(st.integers(0, 320), st.integers(0, 99)), max_size=8))
def test_a_part_of_a_file_reads_like_a_file(content, moves):
    part, file = room._Slice(io.BytesIO(b"before" + content + b"after"), 6, len(content)), io.BytesIO(content)
    for at, size in moves:
        assert part.seek(at) == file.seek(at)
        assert part.read(size) == file.read(size)
    part.seek(-min(3, len(content)), io.SEEK_END)
    assert part.read() == content[-3:] if content else part.read() == b""


def test_progress_ends_where_the_archive_does(folder):
    path = packed(folder, "tar.gz")
    told = []
    with members(path, texts, MOST, lambda *report: told.append(report)):
        pass
    assert told[-1] == ("bytes of set.tar.gz", path.stat().st_size, path.stat().st_size)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.97])
def test_an_archive_that_was_cut_short_or_changed_is_refused(kind, share, folder):
    path = packed(folder, kind)
    whole = path.read_bytes()
    official.cut(path, share)
    if kind == "tar.gz":  # what is left of a zip is no zip
        with pytest.raises(BadData, match=r"set\.tar\.gz cannot be read to its end"):
            contents(path)
    path.write_bytes(whole)
    expected = contents(path)
    official.flip(path, share)
    try:
        found = contents(path)
    except BadData:
        return
    assert kind == "zip"  # which has a checksum a file, and bytes that say nothing
    assert found == expected


def test_a_wrong_checksum_at_the_very_end_is_found(folder):
    path = packed(folder, "tar.gz")
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadData, match="CRC"):
        contents(path)


def entry(name: str, size: int = 0, **more) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size = size
    for key, value in more.items():
        setattr(found, key, value)
    return found


def tar_of(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for about, content in entries:
            file.addfile(about, io.BytesIO(content))
    return path


def test_a_name_that_leads_out_of_the_folder_writes_nothing_there(tmp_path):
    names = ["../../outside.txt", "/tmp/absolute-outside.txt"]
    path = tar_of(tmp_path / "deep.tar.gz", *((entry(name, 2), b"hi") for name in names))
    assert contents(path) == {"outside.txt": b"hi", "absolute-outside.txt": b"hi"}
    assert not list(tmp_path.parent.rglob("*outside.txt"))
    assert not Path("/tmp/absolute-outside.txt").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused_if_they_are_wanted(kind, tmp_path):
    link = entry("a/1.txt", type=kind, linkname="/etc/passwd")
    with pytest.raises(BadData, match=r"a/1\.txt is a link, a device or encrypted"):
        contents(tar_of(tmp_path / "links.tar.gz", (link, b"")))
    link.name = "a/1.bin"
    assert contents(tar_of(tmp_path / "links.tar.gz", (link, b""))) == {}


def test_two_files_of_one_name_are_refused(folder, tmp_path):
    (folder / "b" / "1.txt").write_text("again")
    with pytest.raises(BadData, match=r"has 1\.txt twice: a/1\.txt and b/1\.txt"):
        contents(folder)


def test_a_file_larger_than_it_can_be_is_refused_before_it_is_read(folder, tmp_path):
    (folder / "a" / "1.txt").write_bytes(bytes(MOST + 1))
    for source in (folder, packed(folder, "tar.gz"), packed(folder, "zip")):
        with pytest.raises(BadData, match=r"1\.txt has 1,048,577 bytes, 1,048,576 at most"):
            contents(source)


def test_all_files_together_have_a_limit_too(folder, monkeypatch):
    monkeypatch.setattr(room, "MOST_TOGETHER", 100)
    with pytest.raises(BadData, match="at most were expected"):
        contents(folder)


def test_a_header_that_unfolds_into_memory_is_refused(tmp_path):
    """A name of 100 MB of zeros takes 100 kB in a gzip."""
    long = entry("././@LongLink", 100 * 2**20, type=tarfile.GNUTYPE_LONGNAME)
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write(long.tobuf(tarfile.GNU_FORMAT))
        for _ in range(100):
            file.write(bytes(2**20))
        file.write(entry("1.txt", 2).tobuf() + b"hi".ljust(512, b"\0") + bytes(1024))
    with pytest.raises(BadData, match="a header of"):
        contents(path)


def test_a_zip_that_is_encrypted_or_lies_about_a_size_is_refused(folder):
    path = packed(folder, "zip")
    content = bytearray(path.read_bytes())
    listed = content.index(b"set/4.txt", content.index(b"PK\x01\x02")) - 46
    content[listed + 8] |= 1  # the flag of the entry that is listed
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"4\.txt is a link, a device or encrypted"):
        contents(path)
    lying = packed(folder, "zip")
    content = bytearray(lying.read_bytes())
    at = content.index(b"set/4.txt", content.index(b"PK\x01\x02")) - 46 + 24
    content[at : at + 4] = (2**19).to_bytes(4, "little")
    lying.write_bytes(content)
    with pytest.raises(BadData, match="cannot be read to its end"):
        contents(lying)


def test_what_is_not_there_is_told(folder):
    with members(folder, texts, MOST) as found, pytest.raises(BadData, match=r"9\.txt is not there"):
        found.open("9.txt")


def test_a_file_that_vanishes_meanwhile_is_told(folder):
    with members(folder, texts, MOST) as found:
        (folder / "4.txt").unlink()
        with pytest.raises(BadData, match=r"4\.txt cannot be read"):
            found.open("4.txt")
