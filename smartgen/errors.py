"""Errors a user can act on: one line that names the thing, its value and what would be right.

Every exception here can be rebuilt from its ``args``: SimPy does that when one crosses processes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any


class SmartGenError(Exception):
    """A mistake in what was asked for; the command line prints it as one line and exits with 1."""


class RequestFailed(Exception):  # noqa: N818 - names an outcome, as asyncio's CancelledError does
    """A request cannot be finished: its peer is lost or one of its transfers failed."""


def positive(name: str, value: Any) -> float:
    """Return value as a float, or refuse it by name unless it is a finite number above zero."""
    number = _number(name, value, "a positive number")
    if not number > 0:
        raise SmartGenError(f"{name}={value!r} must be a positive number")
    return number


def not_negative(name: str, value: Any) -> float:
    """Return value as a float, or refuse it by name unless it is a finite number, zero or above."""
    number = _number(name, value, "a number of zero or more")
    if number < 0:
        raise SmartGenError(f"{name}={value!r} must be a number of zero or more")
    return number


def ratio(name: str, value: Any) -> float:
    """Return value as a float, or refuse it by name unless it lies in [0, 1]."""
    return within(name, value, 0, 1)


def within(name: str, value: Any, low: float, high: float) -> float:
    """Return value as a float, or refuse it by name unless it lies in [low, high]."""
    right = f"a number in [{low}, {high}]"
    number = _number(name, value, right)
    if not low <= number <= high:
        raise SmartGenError(f"{name}={value!r} must be {right}")
    return number


def count(name: str, value: Any, at_least: int = 1) -> int:
    """Return value, or refuse it by name unless it is an integer of at_least or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise SmartGenError(f"{name}={value!r} must be an integer of {at_least} or more")
    return value


def one_of(name: str, value: Any, options: Iterable[str]) -> None:
    """Refuse value by name unless it is one of the options."""
    known = tuple(options)
    if value not in known:
        raise SmartGenError(f"{name}={value!r} must be one of {', '.join(known)}")


def truth(name: str, value: Any) -> None:
    """Refuse value by name unless it is true or false."""
    if not isinstance(value, bool):
        raise SmartGenError(f"{name}={value!r} must be true or false")


def pairs(name: str, value: Any, num_owners: int) -> dict[int, float]:
    """Return pairs of a number below num_owners and a time in seconds as a mapping.

    Refuses by name what is no list of pairs, an owner that does not exist, or a negative time.
    """
    right = f"a list of pairs [number from 0 to {num_owners - 1}, seconds]"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SmartGenError(f"{name}={value!r} must be {right}")
    times: dict[int, float] = {}
    for pair in value:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise SmartGenError(f"{name}={value!r} must be {right}")
        owner, at_s = pair
        if type(owner) is not int or owner not in range(num_owners):
            raise SmartGenError(f"{name} names {owner!r}; it must be {right}")
        if owner in times:
            raise SmartGenError(f"{name} names {owner} twice; it must name each once")
        times[owner] = not_negative(f"{name} of {owner}", at_s)
    return times


def _number(name: str, value: Any, right: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SmartGenError(f"{name}={value!r} must be {right}")
    return float(value)
