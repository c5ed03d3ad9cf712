"""What figures call what runs differ in."""

from collections.abc import Mapping
from typing import Any

from smartgen.metrics.store import Run

TITLES = {
    "multifieldqa": "MultiFieldQA",
    "govreport": "GovReport",
    "samsum": "SAMSum",
    "lcc": "LCC",
    "infinigen": "InfiniGen",
    "hata": "HATA",
    "quest": "Quest",
}
"""Names as their authors write them."""

NAMED = ("model", "workload", "gpu", "selector", "host", "selection", "backend")
"""Sections whose name says what they are."""

PERCENT = {"speculative_ratio": "speculative", "selection_ratio": "selecting"}


def say(key: str, value: Any, run: Run) -> str:
    """A value of a key in a few words."""
    if key == "network":
        return bandwidth(run)
    if key in NAMED:
        return TITLES.get(str(value), str(value))
    name = key.rsplit(".")[-1]
    if name in PERCENT and isinstance(value, int | float):
        return f"{PERCENT[name]} {value * 100:g} %"
    return f"{value:g} Gbps" if key == "network.gbps" else f"{name}={value}"


def bandwidth(run: Run) -> str:
    """The rate of a network where it has one that can be the limit, else its name."""
    network = run.config["network"]
    return str(network["name"]) if is_unlimited(run) else f"{network['gbps']:g} Gbps"


def is_unlimited(run: Run) -> bool:
    """Whether no link was ever in the way."""
    network = run.config.get("network")
    return isinstance(network, Mapping) and network.get("name") == "unlimited"
