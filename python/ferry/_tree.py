# SPDX-License-Identifier: Apache-2.0
"""Nested containers of arrays, as a description and a list of arrays.

The description is JSON, version 1; nothing of it is executed when it is read.
"""
import json
import typing

_VERSION = 1
_MAX_DEPTH = 64


def flatten(tree: typing.Any) -> typing.Tuple[bytes, typing.List[typing.Any]]:
    """The description of the tree, and its arrays in order. Raises TypeError naming the path of what it cannot hold."""
    leaves: typing.List[typing.Any] = []
    root = _describe(tree, "", leaves, 0)
    return json.dumps({"version": _VERSION, "leaves": len(leaves), "root": root}, separators=(",", ":")).encode(), leaves


def _describe(value: typing.Any, path: str, leaves: typing.List[typing.Any], depth: int) -> typing.Any:
    if depth > _MAX_DEPTH:
        raise TypeError(f"the tree is nested more than {_MAX_DEPTH} deep, at {path}")
    if value is None or isinstance(value, (bool, str)):
        return {"v": value}
    if type(value) in (int, float):
        # JSON has neither infinities nor large integers that all readers agree on.
        return {"n": repr(value)}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the keys of a tree's dicts are str; {path or 'the root'} has {key!r}")
        return {"d": [[key, _describe(each, f"{path}/{key}", leaves, depth + 1)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "l" if isinstance(value, list) else "t"
        return {kind: [_describe(each, f"{path}/{index}", leaves, depth + 1) for index, each in enumerate(value)]}
    if not (hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__") or _has_buffer(value)):
        raise TypeError(f"{path or 'the root'} of the tree is a {type(value).__name__}, which is neither a container, "
                        "nor an array, nor a plain value")
    leaves.append(value)
    return {"a": len(leaves) - 1}


def _has_buffer(value: typing.Any) -> bool:
    try:
        memoryview(value).release()
    except TypeError:
        return False
    except (BufferError, ValueError):
        # Arrays of types that have no format.
        return True
    return True


class Description:
    """A description that was received. Raises ValueError for one that is malformed."""

    def __init__(self, text: bytes) -> None:
        try:
            read = json.loads(text)
            version = read["version"]
            self.leaf_count = int(read["leaves"])
            self._root = read["root"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("the description of the tree is malformed: was it sent by send_tree?") from error
        if version != _VERSION:
            raise ValueError(f"the description of the tree has version {version}; this Ferry reads {_VERSION}")

    def build(self, leaves: typing.Sequence[typing.Any]) -> typing.Any:
        """The tree with these arrays."""
        return _build(self._root, leaves, 0)


def _build(node: typing.Any, leaves: typing.Sequence[typing.Any], depth: int) -> typing.Any:
    if depth > _MAX_DEPTH or not isinstance(node, dict) or len(node) != 1:
        raise ValueError("the description of the tree is malformed")
    (kind, value), = node.items()
    if kind == "v":
        return value
    if kind == "n":
        return float(value) if any(letter in value for letter in ".einf") else int(value)
    if kind == "b":
        return bytes.fromhex(value)
    if kind == "d":
        return {key: _build(each, leaves, depth + 1) for key, each in value}
    if kind in ("l", "t"):
        built = [_build(each, leaves, depth + 1) for each in value]
        return built if kind == "l" else tuple(built)
    if kind == "a":
        return leaves[value]
    raise ValueError(f"the description of the tree has a node of the unknown kind {kind!r}")
