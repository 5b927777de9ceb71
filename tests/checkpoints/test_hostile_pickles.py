from __future__ import annotations

import copyreg
import json
import pickle
import struct
import sys
from pathlib import Path

import pytest
import torch
from torch_files import ops, outcome, packed, refused, table, tensor

from ssm_priors import pickles
from ssm_priors.checkpoints import archive

BIG = 2**40


def routes(command: str, path: Path) -> dict[str, bytes]:
    """Every instruction by which a pickle reaches a function, with a command that makes a file."""
    text, code = ops(command), ops(f"open({str(path)!r}, 'w').close()")
    system, arguments = b"cos\nsystem\n", b"(" + text + b"t"
    other = path.with_name("other.pkl")
    other.write_bytes(pickle.dumps({}) if path.exists() else system + arguments + b"R.")
    return {
        "REDUCE": system + arguments + b"R",
        "REDUCE of posix": b"cposix\nsystem\n" + arguments + b"R",
        "REDUCE of python 2": b"c__builtin__\neval\n(" + code + b"tR",
        "STACK_GLOBAL": b"\x8c\x02os\x8c\x06system\x93" + arguments + b"R",
        "dotted": b"\x80\x04\x8c\x09importlib\x8c\x0dimport_module\x93" + arguments + b"R",
        "eval": b"cbuiltins\neval\n(" + code + b"tR",
        "exec": b"cbuiltins\nexec\n(" + code + b"tR",
        "subprocess": b"csubprocess\ncheck_call\n((" + ops("/bin/sh") + ops("-c") + text + b"ltR",
        "pickle": b"cpickle\nloads\n(" + ops(b"x").replace(ops(b"x"), b"") + ops(other.read_bytes()) + b"tR",
        "torch.load": b"ctorch\nload\n(" + ops(str(other)) + b"tR",
        "map": b"cbuiltins\nlist\n(cbuiltins\nmap\n(" + system + b"(" + text + b"ltRtR",
        "INST": b"(" + text + b"ios\nsystem\n",
        "OBJ": b"(" + system + text + b"o",
        "NEWOBJ": b"csubprocess\nPopen\n((" + ops("/bin/sh") + ops("-c") + text + b"lt\x81",
        "NEWOBJ_EX": b"csubprocess\nPopen\n)" + table(args=text, shell=b"\x88") + b"\x92",
        "EXT1": b"\x82\xf0" + arguments + b"R",
        "EXT2": b"\x83\xf0\x00" + arguments + b"R",
        "EXT4": b"\x84\xf0\x00\x00\x00" + arguments + b"R",
        "BUILD": b"cfunctools\npartial\n(cbuiltins\nlen\ntR(" + system + arguments + b"}Ntb)R",
        "BUILD of a name": b"ctorch._utils\n_rebuild_tensor_v2\n(N" + table(__code__=system, __call__=system) + b"tb",
        "BUILD of slots": b"ccollections\nOrderedDict\n)R(N" + table(items=system, get=system, keys=system) + b"tb",
        "BINPERSID": system + arguments + b"RQ",
        "PERSID": b"P" + command.encode() + b"\n",
        "rebuild": b"ctorch._tensor\n_rebuild_from_type_v2\n(" + system + b"N" + arguments + b"NtR",
        "hooks": b"ctorch._utils\n_rebuild_parameter\n(" + system + arguments + b"R\x88" + system + b"tR",
        "append": b"ccollections\ndeque\n)R" + system + arguments + b"Ra",
        "key of a set": b"\x8f(" + system + arguments + b"R\x90",
        "frozen set": b"(" + system + arguments + b"R\x91",
    }


NAMES = list(routes("", Path("/tmp/nothing")))
HARMLESS = {"NEWOBJ", "NEWOBJ_EX", "BUILD of a name", "BUILD of slots", "PERSID", "dotted", "torch.load", "BINPERSID"}
"""Payloads that `pickle.loads` does not carry out either, as far as the command goes, or only with torch's help."""
PLACES = {
    "alone": lambda bad: bad,
    "a setting": lambda bad: table(state_dict=table(w=tensor()), hyper_parameters=table(a=bad)),
    "settings": lambda bad: table(state_dict=table(w=tensor()), hyper_parameters=bad),
    "a weight": lambda bad: table(w=tensor(), v=bad),
    "the key of a weight": lambda bad: table(w=tensor()) + bad + tensor() + b"s",
    "keys of weights": lambda bad: table(w=tensor()) + b"(" + bad + tensor() + b"u",
    "weights": lambda bad: table(state_dict=bad, w=tensor()),
    "the metadata of weights": lambda bad: b"ccollections\nOrderedDict\n)R(" + ops("w") + tensor() + b"u" + bad + b"b",
    "optimiser states": lambda bad: table(state_dict=table(w=tensor()), optimizer_states=b"]" + bad + b"a"),
    "a size": lambda bad: table(w=tensor().replace(ops((1,)), bad)),
    "a parameter": lambda bad: table(w=b"ctorch._utils\n_rebuild_parameter\n(" + bad + b"\x88NtR"),
    "a changed tensor": lambda bad: table(w=tensor() + bad + b"b"),
}


@pytest.fixture
def extension():
    copyreg.add_extension("os", "system", 0xF0)
    yield
    copyreg.remove_extension("os", "system", 0xF0)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HARMLESS])
def test_the_hostile_pickles_are_hostile(name, tmp_path, extension):
    canary = tmp_path / "canary"
    try:
        pickle.loads(routes(f"touch {canary}", canary)[name] + b".")
    except (TypeError, AttributeError, pickle.UnpicklingError):
        assert canary.exists()
    assert canary.exists()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_file_runs(name, place, tmp_path, extension):
    canary = tmp_path / "canary"
    content = PLACES[place](routes(f"touch {canary}", canary)[name])
    found = outcome(packed(tmp_path / "hostile.pt", content))
    assert not canary.exists()
    if found:
        assert {name: found.tensors[name].tolist() for name in found.tensors} == {"w": [1, 2, 3, 4]}
        assert set(json.dumps(found.settings)) <= set('{}[]" :,abnulprsitgexc0123456789')
    if place in ("a setting", "settings", "optimiser states", "the key of a weight"):
        assert found


class Hostile:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", range(1, 6))
@pytest.mark.parametrize("where", ["state_dict", "hyper_parameters", "optimizer_states", "callbacks"])
def test_a_hostile_object_of_any_protocol_is_inert(where, protocol, tmp_path):
    content = {
        "state_dict": {"w": torch.ones(2)},
        "hyper_parameters": {"a": 1},
        "optimizer_states": [],
        "callbacks": {},
    }
    bad = Hostile(tmp_path / "canary")
    content[where] = {"w": torch.ones(2), "bad": bad, ("key", 1): bad}
    torch.save(content, tmp_path / "file.pt", pickle_protocol=protocol)
    found = archive.read(tmp_path / "file.pt")
    assert found.tensors["w"].tolist() == [1, 1]
    assert list(found.tensors) == ["w"]
    assert not (tmp_path / "canary").exists()


def test_no_module_is_imported_for_a_name(tmp_path):
    packed(tmp_path / "file.pt", table(w=tensor(), a=b"cthis\nd\n)R", b=b"\x8c\x0bantigravity\x8c\x04this\x93)R"))
    sys.modules.pop("this", None)
    assert list(archive.read(tmp_path / "file.pt").tensors) == ["w"]
    assert not {"this", "antigravity"} & set(sys.modules)


def test_a_tensor_cannot_be_changed_once_it_was_held_against_its_numbers(tmp_path):
    for state in ([], {"offset": 9}, (None, {"offset": 9}), ["0", None, 4, 0, (BIG,), (0,), False, False]):
        packed(tmp_path / "file.pt", table(w=tensor() + ops(state) + b"b"))
        assert archive.read(tmp_path / "file.pt").tensors["w"].tolist() == [1, 2, 3, 4]


# -- tensors that lie, and pickles that take for ever


LIES = {
    "beyond the end": {"size": (5,)},
    "beyond the end by an offset": {"offset": 1},
    "beyond the end by a stride": {"size": (2,), "stride": (4,)},
    "before the start": {"offset": -1},
    "backwards": {"stride": (-1,)},
    "a negative size": {"size": (-4,)},
    "more strides than sizes": {"stride": (1, 1)},
    "more sizes than strides": {"size": (2, 2)},
    "no numbers": {"size": (2.0,)},
    "true for a number": {"size": (True,)},
    "no sizes": {"size": 4},
    "a table of sizes": {"size": {4: 4}},
    "a text for a size": {"size": "4"},
    "larger than memory": {"size": (BIG,), "stride": (0,)},
    "larger than memory by two": {"size": (2**20, 2**20), "stride": (0, 0)},
    "more than 64 bits": {"size": (2**70,), "stride": (0,)},
    "an empty one of more than 64 bits": {"size": (0, 2**70), "stride": (0, 0)},
    "an empty one of too many": {"size": (0, 2**61, 2**61), "stride": (1, 1, 1)},
    "very many dimensions": {"size": (2**61,) * 100_000, "stride": (0,) * 100_000},
    "more numbers than there are": {"count": 5},
    "fewer numbers than there are": {"count": 3, "size": (3,)},
    "a number of numbers that is none": {"count": "4"},
    "fewer than none": {"count": -4, "size": (0,)},
    "numbers that are not there": {"key": "7"},
    "numbers elsewhere": {"key": "../byteorder"},
    "a name of numbers that is none": {"key": 0},
    "an unknown type": {"kind": "QInt8Storage"},
    "a type that is none": {"kind": "nn"},
    "another type": {"kind": "DoubleStorage"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_tensor_that_is_no_view_of_its_numbers_is_refused(lie, tmp_path, frugal):
    assert archive.read(packed(tmp_path / "true.pt", table(w=tensor()))).tensors["w"].tolist() == [1, 2, 3, 4]
    refused(packed(tmp_path / "lie.pt", table(w=tensor(**LIES[lie]))))


NEST = 120_000


def _objects(depth: int) -> bytes:
    """Nodes of omegaconf, each the content of the next."""
    return (b"ca\nb\n)R}" + ops("_val")) * depth + b"N" + b"sb" * depth


BOMBS = {
    "a memo of gigabytes": b"]r\xff\xff\xff\x7f0" + table(w=tensor()),
    "a bytearray that is longer than it is": b"\x96" + struct.pack("<Q", BIG),
    "text that is longer than it is": b"\x8d" + struct.pack("<Q", 2**62),
    "bytes that are longer than they are": b"\x8e" + struct.pack("<Q", 2**63 + 1),
    "a number that is longer than it is": b"\x8b" + struct.pack("<i", 2**31 - 1),
    "a number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n",
    "a bytearray by call": table(w=tensor(), a=b"cbuiltins\nbytearray\n(" + ops(BIG) + b"tR"),
    "a list of a range": table(a=b"cbuiltins\nlist\n(cbuiltins\nrange\n(" + ops(BIG) + b"tRtR"),
    "copies of a text": table(a=ops("x" * 2**20) + b"q\x01]" + b"cbuiltins\nlist\n(h\x01tRa" * 2000),
    "tuples in tuples as a key": table(w=tensor()) + b")" + b"\x85" * NEST + b"Ns",
    "tuples of twice the same as a key": table(w=tensor()) + b")" + b"2\x86" * 60 + b"Ns",
    "tuples of twice the same in a set": b"\x8f()" + b"2\x86" * 60 + b"\x900" + table(w=tensor()),
    "tuples in tuples as a weight": table(w=tensor(), v=b")" + b"\x85" * NEST),
    "lists in lists as a setting": table(w=tensor(), config=b"]" * NEST + b"a" * (NEST - 1)),
    "twice the same as a setting": table(w=tensor(), config=b")" + b"2\x86" * 60),
    "a list in itself as a setting": table(w=tensor(), config=b"]q\x01h\x01a"),
    "a table in itself as a setting": table(w=tensor(), config=b"}q\x01" + ops("a") + b"h\x01s"),
    "objects in objects as a setting": table(w=tensor(), config=_objects(5000)),
    "weights in themselves": b"}q\x01" + ops("state_dict") + b"h\x01s" + ops("w") + tensor() + b"s",
    "many instructions": b"}" * (pickles.MOST_STEPS + 10),
    "many names": b"ca\nb\n0" * 50_000 + table(w=tensor()),
}
READABLE = {
    "a memo of gigabytes",
    "a bytearray by call",
    "tuples in tuples as a key",
    "tuples of twice the same as a key",
    "tuples of twice the same in a set",
    "tuples in tuples as a weight",
    "weights in themselves",
    "many names",
}
"""What is read, as if the bomb were not there."""


@pytest.mark.parametrize("name", BOMBS)
def test_no_pickle_takes_gigabytes_or_for_ever(name, tmp_path, frugal):
    path = packed(tmp_path / "bomb.pt", BOMBS[name])
    assert (outcome(path) is not None) == (name in READABLE)
