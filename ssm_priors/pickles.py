"""What a pickle holds, without running it.

A pickle is a program for a machine with a stack: it makes containers, names functions and calls them. This machine
makes the containers, but a name stays a name to it, and a call becomes a record of what was called with what. So
nothing of the file runs and no module is imported, whichever instruction it uses. Tables keep only what stands under
strings: to hash nested tuples can take for ever, or more stack than there is.

`pickle.Unpickler` with a `find_class` of one's own is no such machine. Its BUILD changes objects of ours behind their
constructors, and a file of ten bytes makes its memo take gigabytes.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_STEPS = 1_000_000
"""Instructions that are followed; a tensor takes about 30."""


@dataclass(eq=False, slots=True)
class Thing:
    """What is no plain value: a name, or what calling it would have made. It does nothing."""

    name: str
    """Module and name: "torch._utils._rebuild_tensor_v2"."""
    args: tuple[Any, ...] = ()
    """What it was called with."""
    table: dict[str, Any] = field(default_factory=dict)
    """What was put into it under strings, as into a dictionary."""
    state: Any = None
    """What was to become its attributes."""


def read(pickle: bytes) -> Any:
    """The value that a pickle stands for: plain values, lists, tuples and dictionaries of them, and `Thing`s.

    Raises:
        Exception: it is damaged, or takes more than `MOST_STEPS`.
    """
    machine = _Machine()
    for step, (instruction, argument, _) in enumerate(pickletools.genops(pickle)):
        if instruction.name == "STOP":
            return machine.pop()
        if step > MOST_STEPS:
            raise ValueError("a pickle of more instructions than are followed")
        INSTRUCTIONS[instruction.name](machine, argument)
    raise ValueError("a pickle that does not end")


class _Machine:
    """The stack, the marks in it, and the memo of values that are used again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("a pickle takes more than it has")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def top(self) -> Any:
        value = self.pop()
        self.push(value)
        return value

    def remember(self, index: int) -> None:
        if not 0 <= index < 2**32:  # larger ones can be chosen to have one hash
            raise ValueError("a pickle remembers more than it can")
        self.memo[index] = self.top()


def _call(machine: _Machine, name: Any, args: Any) -> None:
    if not isinstance(name, Thing) or not isinstance(args, (tuple, list)):
        raise ValueError("a pickle calls what is no name")
    machine.push(Thing(name.name, tuple(args)))


def _reduce(machine: _Machine, _: Any) -> None:
    args, name = machine.pop(), machine.pop()
    _call(machine, name, args)


def _reduce_with_keywords(machine: _Machine, _: Any) -> None:
    machine.pop()
    _reduce(machine, _)


def _object(machine: _Machine, _: Any) -> None:
    name, *args = machine.pop_to_mark()
    _call(machine, name, args)


def _instance(machine: _Machine, name: str) -> None:
    _call(machine, Thing(_dotted(name)), machine.pop_to_mark())


def _global(machine: _Machine, name: str) -> None:
    machine.push(Thing(_dotted(name)))


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("a pickle names what is no name")
    machine.push(Thing(f"{module}.{name}"))


def _dotted(name: str) -> str:
    return name.replace(" ", ".")


def _persistent(machine: _Machine, _: Any) -> None:
    machine.push(Thing("persistent", (machine.pop(),)))


def _build(machine: _Machine, _: Any) -> None:
    state = machine.pop()
    target = machine.top()
    if not isinstance(target, Thing):
        raise ValueError("a pickle changes what is no object")
    target.state = state


def _extend(target: Any, values: list[Any]) -> None:
    """Lists keep what they are given; what a Thing is given as if it were a list or a set is dropped."""
    if isinstance(target, list):
        target.extend(values)
    elif not isinstance(target, Thing):
        raise ValueError("a pickle adds to what is no list")


def _append(machine: _Machine, _: Any) -> None:
    value = machine.pop()
    _extend(machine.top(), [value])


def _appends(machine: _Machine, _: Any) -> None:
    values = machine.pop_to_mark()
    _extend(machine.top(), values)


def _set(target: Any, pairs: list[Any]) -> None:
    table = target.table if isinstance(target, Thing) else target
    if not isinstance(table, dict):
        raise ValueError("a pickle fills what is no table")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if isinstance(key, str):
            table[key] = value


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.pop(), machine.pop()
    _set(machine.top(), [key, value])


def _set_items(machine: _Machine, _: Any) -> None:
    pairs = machine.pop_to_mark()
    _set(machine.top(), pairs)


def _dict(machine: _Machine, _: Any) -> None:
    table: dict[str, Any] = {}
    _set(table, machine.pop_to_mark())
    machine.push(table)


def _last(count: int) -> Callable[[_Machine, Any], None]:
    """A tuple of the last values."""

    def make(machine: _Machine, _: Any) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.push(tuple(values[::-1]))

    return make


def _argument(machine: _Machine, value: Any) -> None:
    machine.push(value)


def _new(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(make())


INSTRUCTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(["INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"], _argument),
    **dict.fromkeys(["STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"], _argument),
    **dict.fromkeys(["SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"], _argument),
    "BYTEARRAY8": _argument,
    **dict.fromkeys(["PROTO", "FRAME"], lambda machine, _: None),
    "NONE": _new(lambda: None),
    "NEWTRUE": _new(lambda: True),
    "NEWFALSE": _new(lambda: False),
    "EMPTY_LIST": _new(list),
    "EMPTY_TUPLE": _new(tuple),
    "EMPTY_DICT": _new(dict),
    "EMPTY_SET": _new(lambda: Thing("builtins.set")),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.pop_to_mark(),
    "DUP": lambda machine, _: machine.push(machine.top()),
    "LIST": lambda machine, _: machine.push(machine.pop_to_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    "TUPLE1": _last(1),
    "TUPLE2": _last(2),
    "TUPLE3": _last(3),
    "DICT": _dict,
    "FROZENSET": lambda machine, _: _call(machine, Thing("builtins.frozenset"), machine.pop_to_mark()),
    "APPEND": _append,
    **dict.fromkeys(["APPENDS", "ADDITEMS"], _appends),
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    **dict.fromkeys(["PUT", "BINPUT", "LONG_BINPUT"], lambda machine, index: machine.remember(index)),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    **dict.fromkeys(["GET", "BINGET", "LONG_BINGET"], lambda machine, index: machine.push(machine.memo[index])),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    **dict.fromkeys(["EXT1", "EXT2", "EXT4"], lambda machine, code: machine.push(Thing(f"extension {code}"))),
    **dict.fromkeys(["REDUCE", "NEWOBJ"], _reduce),
    "NEWOBJ_EX": _reduce_with_keywords,
    "INST": _instance,
    "OBJ": _object,
    "BUILD": _build,
    "PERSID": lambda machine, name: machine.push(Thing("persistent", (name,))),
    "BINPERSID": _persistent,
}
"""By the names of the standard library's `pickletools`."""
