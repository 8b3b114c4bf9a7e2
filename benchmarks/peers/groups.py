# SPDX-License-Identifier: Apache-2.0
"""The classes that describe works."""
import dataclasses
import typing


@dataclasses.dataclass
class Work:
    """`unit`: us, ms and GB/s are of seconds, /s is of a rate; `better`: less or more."""
    name: str
    title: str
    unit: str
    bytes: typing.Optional[int] = None
    better: str = "less"


@dataclasses.dataclass
class Figure:
    """The result of one run: seconds or a rate. `peer` and `differs`, if not those of the entry."""
    work: str
    value: float
    peer: typing.Optional[str] = None
    differs: typing.Optional[str] = None
    is_floor: bool = False


@dataclasses.dataclass
class Entry:
    """A peer: its requirements, how it is measured, its differences."""
    peer: str
    needs: list
    measure: typing.Callable
    differs: str
    is_ferry: bool = False


@dataclasses.dataclass
class Group:
    """Works whose figures one run of each entry yields; each round runs all entries alternately."""
    name: str
    works: list
    entries: list
