"""What the claims' values hang on: constants, mechanisms. By the recursion where it can tell."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smartgen.claims.claims import Claim, all_claims
from smartgen.claims.command import read_refits
from smartgen.claims.compose import experiments_of
from smartgen.claims.constants import Constant, all_constants, with_constants
from smartgen.claims.facts import Facts, Point, facts_of_outcome, facts_of_recursion
from smartgen.claims.measures import MEASURES
from smartgen.claims.switches import SWITCHES, Switch
from smartgen.progress import Screen
from smartgen.workers import over_cores

if TYPE_CHECKING:
    from smartgen.experiment import Experiment

Values = dict[str, float]
"""A simulated value for each claim, by id."""

Change = Callable[["Experiment"], "Experiment"]
"""The same experiment with something else."""


class Asked(NamedTuple):
    """A change. adjust: what is made of every run's facts besides."""

    change: Change
    adjust: Callable[[Facts], Facts] | None = None


@dataclass(frozen=True)
class Analysis:
    """Claims that the recursion can tell, and the experiments that tell them."""

    claims: Sequence[Claim]
    experiments: "Mapping[Point, Experiment]"

    def values(self, asked: Asked) -> Values:
        """Every claim's value with a change."""
        changed = {point: asked.change(e) for point, e in self.experiments.items()}
        found = {point: facts_of(experiment) for point, experiment in changed.items()}
        if asked.adjust is not None:
            found = {point: asked.adjust(facts) for point, facts in found.items()}
        return {claim.id: MEASURES[claim.id].value(found) for claim in self.claims}


def facts_of(experiment: "Experiment") -> Facts:
    """By the recursion if it knows all of the experiment, else by the simulator."""
    if experiment.mask_update == "iteration" and experiment.network.discipline == "fifo":
        return facts_of_recursion(experiment)
    from smartgen.sim import SimBackend

    return facts_of_outcome(experiment, SimBackend().run(experiment))


def analysis() -> Analysis:
    """Over every numeric claim and bound whose runs follow the closed selection law."""
    from smartgen.selection import ExponentSelection

    claims = [claim for claim in all_claims() if claim.is_result and claim.id in MEASURES]
    points = sorted({point for claim in claims for point in MEASURES[claim.id].points})
    closed = {
        point: experiment
        for point, experiment in experiments_of(points).items()
        if isinstance(experiment.selection, ExponentSelection)
    }
    told = [claim for claim in claims if closed.keys() >= set(MEASURES[claim.id].points)]
    return Analysis(told, closed)


def many(of: Analysis, asked: Sequence[Asked], screen: Screen) -> list[Values]:
    """Values under each of many changes, over all cores, in order."""
    found: dict[int, Values] = {}
    for number, values in over_cores(of.values, asked):
        found[number] = values
        screen.show(f"{len(found)} of {len(asked)} changes of constants and mechanisms")
    screen.say(f"{len(asked)} changes of constants and mechanisms")
    return [found[number] for number in range(len(asked))]


@dataclass(frozen=True)
class Analysed:
    """Claims' values: as the cards are, under other sets, at ends of ranges, without mechanisms.

    refits: cost and values without a mechanism, fitted again; by the switch's meaning.
    """

    claims: Sequence[Claim]
    base: Values
    sets: Sequence[Values]
    ends: Sequence[tuple[Constant, Values, Values]]
    switches: Sequence[tuple[Switch, Values]]
    refits: Mapping[str, tuple[float, Values]]

    @property
    def held_out(self) -> list[Claim]:
        """The numeric claims that were not fitted: their sensitivity is shown."""
        return [c for c in self.claims if c.is_number and c.set in ("held_out", "parameter_free")]

    def changes(self, end: int) -> NDArray[np.float64]:
        """Relative change of each held-out claim by each constant, [claims, constants].

        end: 0 for the low end of the constants' ranges, 1 for the high end.
        """
        return np.array(
            [
                [values[end][claim.id] / self.base[claim.id] - 1 for _, *values in self.ends]
                for claim in self.held_out
            ]
        )


def analyse(sets: Sequence[Mapping[str, float]], screen: Screen) -> Analysed:
    """Compute all of it; sets: constants by name, of sets that fit about as well."""
    of, constants = analysis(), all_constants()
    unlike = list(
        dict.fromkeys(tuple(values.items()) for values in sets)
    )  # a chain may stand still
    asked = [Asked(Constants({}))]
    asked += [Asked(Constants(dict(values))) for values in unlike]
    asked += [Asked(Constants({c.name: end})) for c in constants for end in (c.low, c.high)]
    asked += [Asked(switch, switch.adjust) for switch in SWITCHES]
    refits, switches = read_refits(), {switch.meaning: switch for switch in SWITCHES}
    asked += [
        Asked(Refitted(switches[meaning], values), switches[meaning].adjust)
        for meaning, (_, values) in refits.items()
    ]
    base, *others = many(of, asked, screen)
    by_set = dict(zip(unlike, others, strict=False))
    others = others[len(unlike) :]
    ends = others[: 2 * len(constants)]
    return Analysed(
        of.claims,
        base,
        [by_set[tuple(values.items())] for values in sets],
        list(zip(constants, ends[::2], ends[1::2], strict=True)),
        list(zip(SWITCHES, others[len(ends) : len(ends) + len(SWITCHES)], strict=True)),
        {
            meaning: (cost, values)
            for (meaning, (cost, _)), values in zip(
                refits.items(), others[len(ends) + len(SWITCHES) :], strict=True
            )
        },
    )


@dataclass(frozen=True)
class Refitted:
    """A mechanism off, and the constants that fit best without it."""

    switch: Switch
    values: Mapping[str, float]

    def __call__(self, experiment: "Experiment") -> "Experiment":
        """The experiment without the mechanism, with these constants."""
        return self.switch(with_constants(experiment, self.values))


@dataclass(frozen=True)
class Constants:
    """A change that other processes can be given."""

    values: Mapping[str, float]

    def __call__(self, experiment: "Experiment") -> "Experiment":
        """The experiment with these constants."""
        return with_constants(experiment, self.values)
