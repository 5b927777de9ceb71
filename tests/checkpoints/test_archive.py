from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch_files import ops, outcome, packed, refused, table, tensor

from ssm_priors.checkpoints import archive
from ssm_priors.errors import BadCheckpoint

DTYPES = [("torch", dtype) for dtype in archive.STORAGES.values()]
DTYPES += [("safetensors", dtype) for dtype in archive.STORAGES.values() if dtype != torch.complex128]


# -- what other tools write


@pytest.mark.parametrize(("kind", "dtype"), DTYPES, ids=str)
def test_tensors_of_every_type_and_shape_are_those_that_were_saved(kind, dtype, tmp_path):
    numbers = (torch.arange(24) % 2 if dtype == torch.bool else torch.arange(24)).to(dtype)
    if dtype.is_complex:
        numbers = numbers * (1 - 2j)
    tensors = {
        "plain": numbers.reshape(2, 3, 4),
        "turned": numbers.reshape(4, 6).T,
        "sliced": numbers[5:20:3],
        "scalar": numbers[7],
        "empty": numbers[:0].reshape(0, 3),
        "expanded": numbers[:2].expand(5, 2),
    }
    path = tmp_path / "file"
    if kind == "torch":
        torch.save(tensors, path)
    else:
        save_file({name: value.clone().contiguous() for name, value in tensors.items()}, path)
    found = archive.read(path).tensors
    assert set(found) == set(tensors)
    assert len(found) == len(tensors)
    for name, expected in tensors.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], expected)


def test_views_that_are_read_conjugated_or_negated_are_so_here(tmp_path):
    one, two = torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex128)
    tensors = {"conj": one.conj(), "of conj": two.conj().imag}
    torch.save(tensors, tmp_path / "file.pt")
    found = archive.read(tmp_path / "file.pt").tensors
    assert all(torch.equal(found[name], value.resolve_conj().resolve_neg()) for name, value in tensors.items())
    assert not found["conj"].is_conj()


def test_parameters_and_tensors_with_attributes_are_tensors(tmp_path):
    marked, parameter = torch.ones(2), nn.Parameter(torch.arange(3.0))
    marked._rate, parameter._rate = 0.1, 0.1
    torch.save(
        {"a": nn.Parameter(torch.ones(3)), "b": parameter, "c": marked, "d": marked.view(2, 1)}, tmp_path / "p.pt"
    )
    found = archive.read(tmp_path / "p.pt").tensors
    assert {name: found[name].tolist() for name in found} == {
        "a": [1, 1, 1],
        "b": [0, 1, 2],
        "c": [1, 1],
        "d": [[1], [1]],
    }


@pytest.mark.parametrize("key", ["", *archive.STATE_DICTS])
@pytest.mark.parametrize("protocol", range(1, 6))
def test_the_weights_are_found_where_tools_keep_them(key, protocol, tmp_path):
    state = nn.BatchNorm1d(3).state_dict()
    others = {"epoch": 3, "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}], "seen": {1, 2}}
    torch.save({key: state, **others} if key else state, tmp_path / "file.pt", pickle_protocol=protocol)
    found = archive.read(tmp_path / "file.pt").tensors
    assert list(found) == list(state)
    assert all(torch.equal(found[name], value) for name, value in state.items())


@pytest.mark.parametrize("protocol", range(1, 6))
def test_settings_are_plain_values_whatever_they_were(protocol, tmp_path):
    stated = {"a": 1, "b": [None, 2.5, (True, "x")], "c": OrderedDict(d={"e": -(2**70)}), "path": Path("x"), "set": {1}}
    content = {"state_dict": {"w": torch.ones(1)}, "hyper_parameters": stated, "config": {"not": "this"}}
    torch.save(content, tmp_path / "file.pt", pickle_protocol=protocol)
    expected = {"a": 1, "b": [None, 2.5, [True, "x"]], "c": {"d": {"e": -(2**70)}}, "path": None, "set": None}
    assert archive.read(tmp_path / "file.pt").settings == expected


# -- damaged files


@pytest.fixture
def sound(tmp_path) -> tuple[Path, dict[str, torch.Tensor]]:
    tensors = {"kernel.C": torch.arange(6.0).reshape(3, 2), "kernel.A": torch.ones(2, dtype=torch.complex64)}
    torch.save({"state_dict": tensors, "hyper_parameters": {"a": [1, "b"]}}, tmp_path / "sound.pt")
    return tmp_path / "sound.pt", tensors


def same_or_refused(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = outcome(path)
    if found:
        assert all(torch.equal(found.tensors[name], tensors[name]) for name in found.tensors)


def test_a_file_cut_short_anywhere_is_refused(sound, tmp_path):
    whole = sound[0].read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        refused(tmp_path / "cut.pt")


def test_a_flipped_byte_is_noticed_or_changes_no_number(sound, tmp_path):
    whole = sound[0].read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (tmp_path / "flipped.pt").write_bytes(flipped)
        same_or_refused(tmp_path / "flipped.pt", sound[1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.binary(max_size=9)), min_size=1, max_size=4)
)
@pytest.mark.parametrize("kind", ["torch", "pickle", "safetensors"])
def test_whatever_is_done_to_a_file_only_bad_checkpoint_comes_of_it(kind, edits, tmp_path):
    path = tmp_path / "file"
    if kind == "torch":
        torch.save({"a": torch.ones(2), "config": {"b": [1]}}, path)
    elif kind == "safetensors":
        save_file({"a": torch.ones(2), "b": torch.zeros(3)}, path, {"c": "d"})
    whole = ops({"x": [1, (2, {"y": None})]}) + b"0" + table(w=tensor()) if kind == "pickle" else path.read_bytes()
    for place, cut, new in edits:
        place %= len(whole) + 1
        whole = whole[:place] + new + whole[place + cut :]
    if kind == "pickle":
        packed(path, whole)
    else:
        path.write_bytes(whole)
    outcome(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(content=st.binary(max_size=60))
def test_random_bytes_are_refused_as_a_file_and_as_a_pickle(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file")
    outcome(packed(tmp_path / "file.pt", content))


@pytest.mark.parametrize("what", ["data.pkl", "numbers"])
def test_a_zip_that_unpacks_to_more_than_it_is_is_refused(what, tmp_path, frugal):
    size = 2**26
    content = table(w=tensor(size=(size // 4,), count=size // 4))
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("data.pkl", "data/0"):
            kept = zipfile.ZipInfo(f"archive/{name}")
            bomb = (name == "data.pkl") == (what == "data.pkl")
            kept.compress_type = zipfile.ZIP_DEFLATED if bomb else zipfile.ZIP_STORED
            with file.open(kept, "w", force_zip64=True) as stream:
                if name == "data.pkl":
                    stream.write(content + b".")
                for _ in range(64 if bomb else 0):
                    stream.write(bytes(size // 64))
    assert path.stat().st_size < 2**19
    assert "is compressed" in refused(path)


def test_a_zip_that_lies_about_its_sizes_is_refused(sound, tmp_path, frugal):
    whole = bytearray(sound[0].read_bytes())
    entry = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"data/0"))
    whole[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    (tmp_path / "lie.pt").write_bytes(whole)
    refused(tmp_path / "lie.pt")


# -- files of other kinds


def _zip(**entries: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return stream.getvalue()


def _saved(value: object, **how: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **how)
    return stream.getvalue()


def _header(**header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16 if header else 0)


GOOD = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
OTHERS = {
    "empty": (b"", "neither a torch file"),
    "text": (b"epoch,loss\n1,2\n", "neither a torch file"),
    "a plain pickle": (pickle.dumps({"w": 1}), "neither a torch file"),
    "a torch file of before 1.6": (
        _saved({"w": torch.ones(2)}, _use_new_zipfile_serialization=False),
        "since version 1",
    ),
    "a zip": (_zip(readme=b"x"), "not one that torch wrote"),
    "two pickles": (_zip(**{"a/data.pkl": b"}.", "b/data.pkl": b"}."}), "not one that torch wrote"),
    "TorchScript": (_zip(**{"m/data.pkl": b"c__torch__\nM\n)\x81}b.", "m/code/x.py": b""}), r"__torch__\.M"),
    "a whole module": (_saved(nn.Linear(2, 2)), r"torch\.nn\.modules\.linear\.Linear.*save a state_dict"),
    "a list": (_saved([torch.ones(2)]), "holds a 'list'.*save a state_dict"),
    "a tensor": (_saved(torch.ones(2)), "save a state_dict"),
    "no tensors": (_saved({"a": 1}), "no table of named tensors"),
    "only unnamed tensors": (_saved({1: torch.ones(2)}), "no table of named tensors"),
    "big-endian": (_zip(**{"a/data.pkl": table(w=tensor()) + b".", "a/byteorder": b"big"}), "big-endian"),
    "a pickle without end": (_zip(**{"a/data.pkl": b"}"}), "damaged"),
    "an empty pickle": (_zip(**{"a/data.pkl": b""}), "damaged"),
    "safetensors without tensors": (_header(), "no table"),
    "a header of 2^60 bytes": (struct.pack("<Q", 2**60) + b"{}", "neither"),
    "a header that is no table": (struct.pack("<Q", 2) + b"[]", "neither"),
    "offsets beyond the end": (_header(w=GOOD | {"data_offsets": [0, 32], "shape": [8]}), "neither"),
    "offsets that do not fit the shape": (_header(w=GOOD | {"shape": [3]}), "neither"),
    "offsets in the wrong order": (_header(w=GOOD | {"data_offsets": [16, 0]}), "neither"),
    "offsets of 2^64": (_header(w=GOOD | {"data_offsets": [0, 2**64]}), "neither"),
    "a shape of 2^80": (_header(w=GOOD | {"shape": [2**40, 2**40]}), "neither"),
    "a negative shape": (_header(w=GOOD | {"shape": [-4]}), "neither"),
    "two tensors of one place": (_header(w=GOOD, v=GOOD), "neither"),
    "an unknown type of number": (_header(w=GOOD | {"dtype": "F99"}), "neither"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_kind_is_refused_with_a_reason(name, tmp_path, frugal):
    content, reason = OTHERS[name]
    (tmp_path / "file.pt").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=reason):
        archive.read(tmp_path / "file.pt")
    assert outcome(tmp_path / "file.pt") is None


def test_folders_and_what_is_not_there_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.pt"):
        assert "no such file" in refused(path)


def test_the_hash_is_that_of_the_file(sound):
    import hashlib

    assert archive.read(sound[0]).sha256 == hashlib.sha256(sound[0].read_bytes()).hexdigest()
