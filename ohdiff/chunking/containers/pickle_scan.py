"""Follows a pickle without unpickling it: which storages it names, of what type, and by what path each is reached.

A stack machine over the opcodes that torch's writers use, on dead data: a global is a pair of words, a call is a node
with its arguments, and nothing is imported, called or built. Any other opcode is an error. Work and memory are bounded
by the number of instructions; shared and cyclic values are visited once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from .tensors import NAME_LENGTH_MAX, RANK_MAX, MalformedError

# About 35 for a tensor; a million take a second or two, and at most 200 MB.
INSTRUCTIONS_MAX: Final = 2_000_000
DEPTH_MAX: Final = 64
PATH_LENGTH_MAX: Final = 512
_INT_SIZE_BYTES_MAX: Final = 16
_REBUILDERS: Final = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"}


@dataclass(frozen=True, slots=True)
class Global:
    """A name that unpickling would import."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A persistent id: the storage's class, its key in the archive, and its length in elements of the class."""

    class_name: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor over a storage, places in elements; `dtype` only where the storage has no type of its own."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str | None


# A dict, list, set or object: label, value, label, value ... in order. A label of None adds nothing to a path.
_Node = list[object]


def scan_pickle(data: bytes) -> tuple[list[StorageRef], list[tuple[str, TensorRef]]]:
    """Every storage that is named, and the tensors that can be reached, each with the path of the keys to it.

    Raises
    ------
    MalformedError
        It is not a pickle of protocol 2 or later, uses what torch's writers do not, or is too long.
    """
    machine = _Machine(data)
    try:
        root = machine.run()
    except (IndexError, KeyError) as error:
        raise MalformedError from error
    return machine.storages, list(_reachable(root))


def _reachable(root: object) -> Iterator[tuple[str, TensorRef]]:
    """Depth first, in the order of writing; only the paths to one value are alive at a time."""
    seen: set[int] = set()
    stack: list[tuple[str, Iterator[tuple[object, object]]]] = [("", iter([(None, root)]))]
    while stack:
        prefix, items = stack[-1]
        label, value = next(items, (None, stack))
        if value is stack:
            stack.pop()
            continue
        path = prefix if label is None else f"{prefix}.{_shown(label)}" if prefix else _shown(label)
        if isinstance(value, TensorRef):
            yield path, value
        elif isinstance(value, (list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            if len(path) <= PATH_LENGTH_MAX and len(stack) <= DEPTH_MAX:
                stack.append((path, _items(value, is_labelled=label is not None)))


def _items(value: _Node | tuple[object, ...], *, is_labelled: bool) -> Iterator[tuple[object, object]]:
    """A tuple under a label is data, with numbered items; a tuple without one holds the arguments of a call."""
    if isinstance(value, list):
        return zip(value[::2], value[1::2], strict=False)
    return ((row if is_labelled else None, item) for row, item in enumerate(value))


def _shown(label: object) -> str:
    """A label for a path; one long key behind many values must not be copied for each."""
    text = str(label) if isinstance(label, (str, int)) else "?"
    return text if len(text) <= PATH_LENGTH_MAX else "?"


class _Machine:
    """Every action takes the number that stands beside it in the table: a size, the size of a length, or a count."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._stack: list[object] = []
        self._outer: list[list[object]] = []
        self._memo: dict[int, object] = {}
        self.storages: list[StorageRef] = []

    def run(self) -> object:
        """What STOP leaves, after at most INSTRUCTIONS_MAX instructions."""
        for _ in range(INSTRUCTIONS_MAX):
            code = self._data[self._position]
            self._position += 1
            if code == _STOP:
                return self._stack[-1]
            action, number = _ACTIONS[code]
            action(self, number)
        raise MalformedError

    def _take(self, size: int) -> bytes:
        part = self._data[self._position : self._position + size]
        if len(part) != size:
            raise MalformedError
        self._position += size
        return part

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> str:
        end = self._data.find(b"\n", self._position, self._position + NAME_LENGTH_MAX)
        if end < 0:
            raise MalformedError
        text = self._take(end - self._position)
        self._position += 1
        return text.decode("utf-8", "backslashreplace")

    def skip(self, size: int) -> None:
        self._take(size)

    def pop(self, _: int) -> None:
        self._stack.pop()

    def push_nothing(self, size: int) -> None:
        """A value that cannot lead to a tensor."""
        self._take(size)
        self._stack.append(None)

    def push_bytes(self, prefix: int) -> None:
        self.push_nothing(self._number(prefix))

    def push_text(self, prefix: int) -> None:
        self._stack.append(self._take(self._number(prefix)).decode("utf-8", "backslashreplace"))

    def push_unsigned(self, size: int) -> None:
        self._stack.append(self._number(size))

    def push_signed(self, size: int) -> None:
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def push_long(self, prefix: int) -> None:
        size = self._number(prefix)
        if size > _INT_SIZE_BYTES_MAX:
            self.push_nothing(size)
        else:
            self.push_signed(size)

    def push_node(self, _: int) -> None:
        self._stack.append([])

    def push_sequence(self, _: int) -> None:
        items = self._close_mark()
        self._stack.append(_numbered(0, items))

    def push_mapping(self, _: int) -> None:
        items = self._close_mark()
        self._stack.append(_paired(items))

    def push_tuple(self, count: int) -> None:
        first = len(self._stack) - count
        if first < 0:
            raise MalformedError
        items = tuple(self._stack[first:])
        del self._stack[first:]
        self._stack.append(items)

    def push_marked_tuple(self, _: int) -> None:
        items = self._close_mark()
        self._stack.append(tuple(items))

    def open_mark(self, _: int) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def drop_mark(self, _: int) -> None:
        self._close_mark()

    def _close_mark(self) -> list[object]:
        items = self._stack
        self._stack = self._outer.pop()
        return items

    def _top(self) -> _Node:
        node = self._stack[-1]
        if not isinstance(node, list):
            raise MalformedError
        return node

    def append(self, _: int) -> None:
        value = self._stack.pop()
        node = self._top()
        node.extend((len(node) // 2, value))

    def extend(self, _: int) -> None:
        items = self._close_mark()
        node = self._top()
        node.extend(_numbered(len(node) // 2, items))

    def set_item(self, _: int) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._top().extend((key, value))

    def set_items(self, _: int) -> None:
        items = self._close_mark()
        self._top().extend(_paired(items))

    def build(self, _: int) -> None:
        """State for the object on top: attributes, which add their names to the path."""
        state = self._stack.pop()
        node = self._stack[-1]
        if isinstance(node, list):
            node.extend((None, state))

    def remember(self, size: int) -> None:
        self._memo[self._number(size)] = self._stack[-1]

    def memoize(self, _: int) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def recall(self, size: int) -> None:
        self._stack.append(self._memo[self._number(size)])

    def push_global(self, _: int) -> None:
        module = self._line()
        self._stack.append(Global(module, self._line()))

    def push_stack_global(self, _: int) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise MalformedError
        self._stack.append(Global(module, name))

    def persistent(self, _: int) -> None:
        storage = _storage(self._stack.pop())
        self.storages.append(storage)
        self._stack.append(storage)

    def call(self, argument_count: int) -> None:
        """REDUCE, NEWOBJ and NEWOBJ_EX: a tensor where torch rebuilds one, otherwise a node of the arguments."""
        arguments = [self._stack.pop() for _ in range(argument_count)][::-1]
        rebuilt = _rebuilt(self._stack.pop(), arguments[0])
        if rebuilt is None:
            self._stack.append([part for value in arguments if value != () for part in (None, value)])
        else:
            self._stack.append(rebuilt)


def _numbered(first: int, items: list[object]) -> _Node:
    return [part for row, value in enumerate(items, first) for part in (row, value)]


def _paired(items: list[object]) -> _Node:
    if len(items) % 2:
        raise MalformedError
    return items


def _storage(value: object) -> StorageRef:
    """torch's persistent id: ("storage", class, key, device, length), with a view's place after it in old files."""
    if not isinstance(value, tuple) or len(value) < 5 or value[0] != "storage":
        raise MalformedError
    storage_class, key, count = value[1], value[2], value[4]
    if not isinstance(storage_class, Global) or not isinstance(key, str) or not isinstance(count, int):
        raise MalformedError
    return StorageRef(storage_class.name if storage_class.module.startswith("torch") else "", key, count)


def _rebuilt(function: object, arguments: object) -> TensorRef | None:
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        return None
    if function.module not in ("torch._utils", "torch._tensor"):
        return None
    if function.name == "_rebuild_from_type_v2" and len(arguments) == 4 and isinstance(arguments[2], tuple):
        function, arguments = arguments[0], arguments[2]
    if not isinstance(function, Global) or function.name not in _REBUILDERS or len(arguments) < 4:
        return None
    storage, offset, shape, stride = arguments[:4]
    dtype = arguments[6] if function.name.endswith("v3") and len(arguments) > 6 else None
    dtype_name = dtype.name if isinstance(dtype, Global) and dtype.module == "torch" else None
    if not isinstance(storage, StorageRef) or not isinstance(offset, int):
        return None
    if not (_is_shape(shape) and _is_shape(stride)):
        return None
    return TensorRef(storage, offset, shape, stride, dtype_name)


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple) and len(value) <= RANK_MAX and all(type(length) is int for length in value)


_STOP: Final = ord(".")
# The opcodes as Python's pickletools documents them: flow, memo, values, containers, globals and calls.
_ACTIONS: Final[dict[int, tuple[Callable[[_Machine, int], None], int]]] = {
    0x80: (_Machine.skip, 1),
    0x95: (_Machine.skip, 8),
    ord("("): (_Machine.open_mark, 0),
    ord("0"): (_Machine.pop, 0),
    ord("1"): (_Machine.drop_mark, 0),
    ord("q"): (_Machine.remember, 1),
    ord("r"): (_Machine.remember, 4),
    0x94: (_Machine.memoize, 0),
    ord("h"): (_Machine.recall, 1),
    ord("j"): (_Machine.recall, 4),
    ord("N"): (_Machine.push_nothing, 0),
    0x88: (_Machine.push_nothing, 0),
    0x89: (_Machine.push_nothing, 0),
    ord("G"): (_Machine.push_nothing, 8),
    ord("K"): (_Machine.push_unsigned, 1),
    ord("M"): (_Machine.push_unsigned, 2),
    ord("J"): (_Machine.push_signed, 4),
    0x8A: (_Machine.push_long, 1),
    0x8B: (_Machine.push_long, 4),
    ord("U"): (_Machine.push_text, 1),
    ord("T"): (_Machine.push_text, 4),
    ord("X"): (_Machine.push_text, 4),
    0x8C: (_Machine.push_text, 1),
    0x8D: (_Machine.push_text, 8),
    ord("C"): (_Machine.push_bytes, 1),
    ord("B"): (_Machine.push_bytes, 4),
    0x8E: (_Machine.push_bytes, 8),
    0x96: (_Machine.push_bytes, 8),
    ord("]"): (_Machine.push_node, 0),
    0x8F: (_Machine.push_node, 0),
    ord("}"): (_Machine.push_node, 0),
    ord("l"): (_Machine.push_sequence, 0),
    0x91: (_Machine.push_sequence, 0),
    ord("d"): (_Machine.push_mapping, 0),
    ord(")"): (_Machine.push_tuple, 0),
    0x85: (_Machine.push_tuple, 1),
    0x86: (_Machine.push_tuple, 2),
    0x87: (_Machine.push_tuple, 3),
    ord("t"): (_Machine.push_marked_tuple, 0),
    ord("a"): (_Machine.append, 0),
    ord("e"): (_Machine.extend, 0),
    0x90: (_Machine.extend, 0),
    ord("s"): (_Machine.set_item, 0),
    ord("u"): (_Machine.set_items, 0),
    ord("c"): (_Machine.push_global, 0),
    0x93: (_Machine.push_stack_global, 0),
    ord("Q"): (_Machine.persistent, 0),
    ord("R"): (_Machine.call, 1),
    0x81: (_Machine.call, 1),
    0x92: (_Machine.call, 2),
    ord("b"): (_Machine.build, 0),
}
