"""How loaded the machines were, and whether the run says more about them than about the scheme."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smartgen.cluster import links
from smartgen.experiment import Experiment
from smartgen.metrics.columns import Numbers, equals, floats
from smartgen.metrics.tables import PURPOSES, Tables

if TYPE_CHECKING:
    import pyarrow as pa

Shares = dict[str, float | None]
"""A node's or link's name to its share; null where nothing limits it, or nothing was noted."""

SATURATED_RATIO = 0.95
GROWTH_RATIO = 0.2
"""Of the requests that arrive meanwhile, so many left waiting are a queue that grows."""

WAITS_RATIO, FEWEST_WAITS = 0.02, 10
"""A wait that grows by so much of the time that passes is one, too; seen in so many at least."""


class Steps:
    """A step function of time: the sum of the weights of all intervals that cover a moment."""

    def __init__(self, starts_s: Numbers, ends_s: Numbers, weights: Numbers | float = 1.0) -> None:
        sizes = np.broadcast_to(np.asarray(weights, np.float64), starts_s.shape)
        ends_s = np.maximum(ends_s, starts_s)
        self.times_s, places = np.unique(np.concatenate([starts_s, ends_s]), return_inverse=True)
        changes = np.bincount(places, np.concatenate([sizes, -sizes]), len(self.times_s))
        self.levels = np.cumsum(changes)
        grown = self.levels[:-1] * np.diff(self.times_s)
        self._areas = np.concatenate([[0.0], np.cumsum(grown)])

    def means(self, edges_s: Numbers) -> Numbers:
        """The mean between each edge and the next."""
        if not len(self.times_s):
            return np.zeros(len(edges_s) - 1)
        areas = np.interp(edges_s, self.times_s, self._areas)
        return np.asarray(np.diff(areas) / np.diff(edges_s), np.float64)

    def mean(self, window_s: tuple[float, float]) -> float | None:
        """The mean within a window; null if it has no length."""
        start_s, end_s = window_s
        return float(self.means(np.array(window_s))[0]) if end_s > start_s else None

    def peak(self, window_s: tuple[float, float]) -> float:
        """The highest level within a window."""
        first = max(0, int(np.searchsorted(self.times_s, window_s[0], "right")) - 1)
        levels = self.levels[first : np.searchsorted(self.times_s, window_s[1], "left")]
        return float(max(levels, default=0.0))

    def told(self, window_s: tuple[float, float]) -> dict[str, float | None]:
        """Mean and peak within a window, for metrics.json."""
        return {"mean": self.mean(window_s), "peak": self.peak(window_s)}


class Load:
    """The use of every GPU, link, pool and batch of a run, within its window.

    The window lies between the first and the last arrival; a batch that arrives at once has the
    whole run for it.
    """

    def __init__(
        self,
        tables: Tables,
        experiment: Experiment,
        makespan_s: float,
        link_busy_s: Mapping[str, float],
    ) -> None:
        self._tables, self._experiment, self._makespan_s = tables, experiment, makespan_s
        self._link_busy_s = link_busy_s
        self.window_s = experiment.window_s or (0.0, makespan_s)
        self.is_open = experiment.window_s is not None
        cluster = experiment.cluster
        self._prefill = [f"prefill{number}" for number in range(cluster.prefill_nodes)]
        self._decode = [f"decode{number}" for number in range(cluster.decode_nodes)]
        requests, iterations = tables.requests, tables.iterations
        self._by_prefill = _rows_by(requests, "prefill_node", self._prefill)
        self._by_decode = _rows_by(requests, "decode_node", self._decode)
        self._iterations = _rows_by(iterations, "decode_node", self._decode)
        self.in_system = requests_in_system(requests, makespan_s)

    @property
    def seconds(self) -> float:
        """The window's length."""
        return self.window_s[1] - self.window_s[0]

    def metrics(self) -> dict[str, Any]:
        """What metrics.json holds about load."""
        pools, batches = self._pools(), self._batches()
        cluster, window_s = self._experiment.cluster, self.window_s
        room = dict.fromkeys(self._decode, cluster.decode_pool_tokens)
        room |= dict.fromkeys(self._prefill, cluster.prefill_pool_tokens)
        batch = dict.fromkeys(self._decode, cluster.decode_batch)
        utilisation = {
            "gpu": self._gpus(),
            "nic": self._links(),
            "pool": {name: self._share(pools[name], room[name]) for name in pools},
            "batch": {name: self._share(batches[name], batch[name]) for name in batches},
        }
        found = self._causes(utilisation)
        return {
            "utilisation": utilisation,
            "load": {
                "requests_in_system": self.in_system.told(window_s),
                "batch_size": {name: steps.told(window_s) for name, steps in batches.items()},
                "pool_tokens": {
                    name: steps.told(window_s) if steps else None for name, steps in pools.items()
                },
            },
            "saturated": bool(found),
            "saturated_by": found,
        }

    def _share(self, steps: Steps | None, room: float | None = 1.0) -> float | None:
        if steps is None or room is None:
            return None
        mean = steps.mean(self.window_s)
        return None if mean is None else mean / room

    def _gpus(self) -> Shares:
        """A prefill GPU works from a request's start to its first token, or to its end without."""
        starts_s, firsts_s, ends_s = (
            floats(self._tables.requests, name)
            for name in ("prefill_start_s", "first_token_s", "finish_s")
        )
        ends_s = np.where(np.isnan(firsts_s), ends_s, firsts_s)
        known = ~np.isnan(starts_s + ends_s)
        shares: Shares = {}
        for name, mine in self._by_prefill.items():
            mine = mine & known
            shares[name] = self._share(Steps(starts_s[mine], ends_s[mine]))
        starts_s, ends_s = self._iteration_times()
        for name, mine in self._iterations.items():
            shares[name] = self._share(Steps(starts_s[mine], ends_s[mine]))
        return shares

    def _links(self) -> Shares:
        """Seconds of use within the window, or bytes over the whole run if those are unknown."""
        if self._link_busy_s and self.seconds:
            return {name: busy / self.seconds for name, busy in self._link_busy_s.items()}
        return dict(bytes_ratio(self._tables.requests, self._experiment, self._makespan_s))

    def _iteration_times(self) -> tuple[Numbers, Numbers]:
        iterations = self._tables.iterations
        return floats(iterations, "start_s"), floats(iterations, "end_s")

    def _batches(self) -> dict[str, Steps]:
        starts_s, ends_s = self._iteration_times()
        sizes = floats(self._tables.iterations, "batch_size")
        return {
            name: Steps(starts_s[mine], ends_s[mine], sizes[mine])
            for name, mine in self._iterations.items()
        }

    def _pools(self) -> dict[str, Steps | None]:
        """Tokens of room taken: all of a request at decoding nodes, its prompt at prefill nodes."""
        asked = self._experiment.requests
        prompts = np.array([request.prompt_tokens for request in asked], np.float64)
        whole = prompts + np.array([request.output_tokens for request in asked])
        decode = self._held("reserved_s", "released_s", whole, self._by_decode)
        return decode | self._held(
            "prefill_start_s", "prefill_released_s", prompts, self._by_prefill
        )

    def _held(
        self, taken: str, given_back: str, tokens: Numbers, nodes: Mapping[str, npt.NDArray[Any]]
    ) -> dict[str, Steps | None]:
        starts_s = floats(self._tables.requests, taken)
        ends_s = floats(self._tables.requests, given_back)
        if np.isnan(starts_s).all() or np.isnan(ends_s).all():  # the backend does not note it
            return dict.fromkeys(nodes)
        ends_s = np.where(np.isnan(ends_s), self._makespan_s, ends_s)
        found: dict[str, Steps | None] = {}
        for name, mine in nodes.items():
            mine = mine & ~np.isnan(starts_s)
            found[name] = Steps(starts_s[mine], ends_s[mine], tokens[mine])
        return found

    # -- saturation

    def _causes(self, utilisation: Mapping[str, Shares]) -> list[str]:
        """What is saturated, as kind.name; of a closed batch only receiving links can be."""
        found = [
            f"{kind}.{name}"
            for kind, shares in utilisation.items()
            for name, share in shares.items()
            if share is not None and share > SATURATED_RATIO and self._tells(kind, name)
        ]
        return [*found, "growth"] if self.is_open and self._grows() else found

    def _tells(self, kind: str, name: str) -> bool:
        """Decoding GPUs are busy whenever anything runs, and so is much else in a closed batch."""
        if self.is_open:
            return kind != "gpu" or name in self._prefill
        return kind == "nic" and name in self._decode

    def _grows(self) -> bool:
        start_s, end_s = self.window_s
        edges_s = np.linspace(start_s, end_s, 5)
        _, second, _, last = self.in_system.means(edges_s)
        centre_s, quarter_s = (edges_s[1] + edges_s[2]) / 2, edges_s[1] - start_s
        arrivals = floats(self._tables.requests, "arrival_s")
        came = np.count_nonzero((arrivals > centre_s) & (arrivals <= centre_s + 2 * quarter_s))
        # by chance alone, so many more may be there
        if came and last - second >= max(GROWTH_RATIO * came, 2 * math.sqrt(came)):
            return True
        return self._waits_grow(edges_s)

    def _waits_grow(self, edges_s: Numbers) -> bool:
        """Whether requests wait ever longer until they join: a queue that never empties.

        Waits are compared between who arrived in the second and in the last quarter.
        """
        arrivals_s, joined_s = (
            floats(self._tables.requests, name) for name in ("arrival_s", "joined_s")
        )
        waits_s = joined_s - arrivals_s
        quarters = [
            waits_s[(arrivals_s > low) & (arrivals_s <= high) & ~np.isnan(waits_s)]
            for low, high in ((edges_s[1], edges_s[2]), (edges_s[3], edges_s[4]))
        ]
        if min(map(len, quarters)) < FEWEST_WAITS:
            return False
        grown_s = quarters[1].mean() - quarters[0].mean()
        half_s = edges_s[3] - edges_s[1]
        return bool(grown_s > WAITS_RATIO * half_s and quarters[1].min() > quarters[0].mean())


def requests_in_system(requests: "pa.Table", makespan_s: float) -> Steps:
    """How many requests had arrived and had not come to an end."""
    arrivals_s, ends_s = floats(requests, "arrival_s"), floats(requests, "finish_s")
    return Steps(arrivals_s, np.where(np.isnan(ends_s), makespan_s, ends_s))


def bytes_ratio(
    requests: "pa.Table", experiment: Experiment, makespan_s: float
) -> dict[str, float | None]:
    """Bytes that crossed each link over what it could have carried in the makespan.

    A host's link carries what its prefill nodes sent; the cost of messages is not in it.
    """
    cluster = experiment.cluster
    rates = links(experiment.network, cluster)
    sizes = np.nansum([floats(requests, f"{purpose}_bytes") for purpose in PURPOSES], axis=0)
    crossed = dict.fromkeys(rates, 0.0)
    for number in range(cluster.prefill_nodes):
        mine = equals(requests, "prefill_node", f"prefill{number}")
        crossed[cluster.host_of(number)] += float(sizes[mine].sum())
    nodes = [f"decode{number}" for number in range(cluster.decode_nodes)]
    for name, mine in _rows_by(requests, "decode_node", nodes).items():
        crossed[name] += float(sizes[mine].sum())
    return {
        name: crossed[name] / (rate * makespan_s) if makespan_s else None
        for name, rate in rates.items()
    }


def _rows_by(
    table: "pa.Table", column: str, names: Sequence[str]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which rows are each node's."""
    return {name: equals(table, column, name) for name in names}
