# SPDX-License-Identifier: Apache-2.0
"""Nested containers of arrays, as a description and a list of arrays.

The description is JSON: a dict is an object, an array its index, and everything else a list that begins with its kind.
Nothing of it is executed when it is read.
"""
import json
import typing

_MAX_DEPTH = 64
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class _Refused(Exception):
    """What a tree cannot hold, and the path to it, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: typing.List[str] = []


# Types whose values are arrays. It is as long as the program has array types.
_array_types: typing.Set[type] = set()


def flatten(tree: typing.Any) -> typing.Tuple[bytes, typing.List[typing.Any]]:
    """The description of the tree, and its arrays in order. Raises TypeError naming the path of what it cannot hold."""
    leaves: typing.List[typing.Any] = []
    try:
        description = _describe(tree, leaves, 0)
    except _Refused as refused:
        path = "".join(f"/{part}" for part in reversed(refused.path)) or "the root"
        raise TypeError(f"{path} of the tree {refused}") from None
    return _encode(description).encode("utf-8", "surrogatepass"), leaves


def _describe(value: typing.Any, leaves: typing.List[typing.Any], depth: int) -> typing.Any:
    if type(value) in _array_types:
        leaves.append(value)
        return len(leaves) - 1
    if isinstance(value, dict):
        return _describe_dict(value, leaves, depth)
    if isinstance(value, (list, tuple)):
        described: typing.List[typing.Any] = ["list" if isinstance(value, list) else "tuple"]
        _check_depth(depth)
        try:
            for each in value:
                described.append(_describe(each, leaves, depth + 1))
        except _Refused as refused:
            refused.path.append(str(len(described) - 1))
            raise
        return described
    if value is None or isinstance(value, (bool, str)):
        return ["plain", value]
    if isinstance(value, (int, float)) and type(value) in (int, float):
        # JSON has neither infinities nor large integers on which all readers agree.
        return [type(value).__name__, repr(value)]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if not _is_array(value):
        raise _Refused(f"is a {type(value).__name__}, which is neither a container, nor an array, nor a plain value")
    _array_types.add(type(value))
    leaves.append(value)
    return len(leaves) - 1


def _describe_dict(value: typing.Dict[typing.Any, typing.Any], leaves: typing.List[typing.Any],
                   depth: int) -> typing.Dict[str, typing.Any]:
    _check_depth(depth)
    described: typing.Dict[str, typing.Any] = {}
    key: typing.Any = None
    try:
        for key, each in value.items():
            if not isinstance(key, str):
                raise _Refused(f"is the value of the key {key!r}, and keys are str")
            if type(each) in _array_types:
                # Most are.
                described[key] = len(leaves)
                leaves.append(each)
            else:
                described[key] = _describe(each, leaves, depth + 1)
    except _Refused as refused:
        refused.path.append(str(key))
        raise
    return described


def _check_depth(depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise _Refused(f"is nested more than {_MAX_DEPTH} deep, or contains itself")


def _is_array(value: typing.Any) -> bool:
    if hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
        return True
    try:
        memoryview(value).release()
    except TypeError:
        return False
    except (BufferError, ValueError):
        # Of a type that has no format.
        return True
    return True


def build(description: bytes, leaves: typing.Sequence[typing.Any]) -> typing.Any:
    """The tree with these arrays. Raises ValueError for a description that is malformed."""
    try:
        return _build(json.loads(description.decode("utf-8", "surrogatepass")), leaves, 0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the description of the tree is malformed: {error}") from error


def _build(node: typing.Any, leaves: typing.Sequence[typing.Any], depth: int) -> typing.Any:
    if type(node) is int and node >= 0:
        return leaves[node]
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    if isinstance(node, dict):
        return {key: _build(each, leaves, depth + 1) for key, each in node.items()}
    if not isinstance(node, list) or not node:
        raise ValueError(f"{node!r} is no node")
    kind, *values = node
    if kind in ("list", "tuple"):
        built = [_build(each, leaves, depth + 1) for each in values]
        return built if kind == "list" else tuple(built)
    value, = values
    if kind == "plain" and (value is None or isinstance(value, (bool, str))):
        return value
    if kind == "int":
        return int(value)
    if kind == "float":
        return float(value)
    if kind == "bytes":
        return bytes.fromhex(value)
    raise ValueError(f"there is no kind {kind!r}")
