# SPDX-License-Identifier: Apache-2.0
"""The words in which works are told."""
import dataclasses
import typing


@dataclasses.dataclass
class Work:
    """`unit`: us, ms and GB/s are of seconds, /s is of a rate; `better`: less or more of what is measured."""
    name: str
    title: str
    unit: str
    bytes: typing.Optional[int] = None
    better: str = "less"


@dataclasses.dataclass
class Figure:
    """Of one run: seconds or a rate. `peer` and `differs`, if not those of the entry."""
    work: str
    value: float
    peer: typing.Optional[str] = None
    differs: typing.Optional[str] = None
    is_floor: bool = False


@dataclasses.dataclass
class Entry:
    """A peer: what has to be there for it, how it is measured, what is not equal."""
    peer: str
    needs: list
    measure: typing.Callable
    differs: str
    is_ferry: bool = False


@dataclasses.dataclass
class Group:
    """Works that one run of each entry gives figures of; in each round all entries take turns."""
    name: str
    works: list
    entries: list
