"""Constants fitted to the claims of the set "fit", and to no others, over the recursion.

Least squares in the constants' logarithms. A claim's residual is its log error over 5 % and what
rounding hides; a constant's is its distance from the guess before the fit. Then, sets that fit
about as well: draws from what these residuals leave open, were they noise of that size.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smartgen.claims.claims import Claim, all_claims
from smartgen.claims.compose import experiments_of
from smartgen.claims.constants import Constant, fitted_constants, with_constants
from smartgen.claims.facts import Facts, Point, facts_of_recursion
from smartgen.claims.measures import MEASURES
from smartgen.claims.switches import Switch

if TYPE_CHECKING:
    from smartgen.experiment import Experiment

Vector = NDArray[np.float64]
ERROR = 0.05
"""The relative error of a claim that is one standard deviation, besides its rounding."""


@dataclass(frozen=True)
class Problem:
    """The claims to fit, the constants to move, the runs that tell, and what is switched off."""

    claims: Sequence[Claim]
    constants: Sequence[Constant]
    experiments: "Mapping[Point, Experiment]"
    switch: Switch | None = None

    def facts(self, logs: Vector) -> dict[Point, Facts]:
        """Every run under these constants (natural logarithms), without the mechanism if any."""
        values, switch = self.named(logs), self.switch
        found = {}
        for point, experiment in self.experiments.items():
            changed = with_constants(experiment, values)
            facts = facts_of_recursion(switch(changed) if switch else changed)
            found[point] = switch.adjust(facts) if switch and switch.adjust else facts
        return found

    def named(self, logs: Vector) -> dict[str, float]:
        """Constants by name."""
        return {c.name: math.exp(x) for c, x in zip(self.constants, logs, strict=True)}

    def residuals(self, logs: Vector) -> Vector:
        """Of every claim, then of every constant, in standard deviations."""
        found = self.facts(logs)
        missed = [residual(claim, MEASURES[claim.id].value(found)) for claim in self.claims]
        moved = [c.surprise(x) for c, x in zip(self.constants, logs, strict=True)]
        return np.array([*missed, *moved])

    def bounds(self) -> tuple[Vector, Vector]:
        """Four standard deviations around the guesses; a ratio ends at 1."""
        low, high = [], []
        for c in self.constants:
            assert c.spread is not None
            low.append(math.log(c.prior) - 4 * math.log(c.spread))
            top = math.log(c.prior) + 4 * math.log(c.spread)
            high.append(min(0.0, top) if c.name in _RATIOS else top)
        return np.array(low), np.array(high)


_RATIOS = ("selector.scale", "selection.novelty", "selector.metadata_ratio")


def residual(claim: Claim, simulated: float) -> float:
    """A claim's log error in standard deviations."""
    return math.log(simulated / claim.value) / math.hypot(ERROR, claim.rounding)


def problem() -> Problem:
    """The fit of this project: the numeric claims of the set "fit" that runs of schemes tell."""
    claims = [c for c in all_claims() if c.set == "fit" and c.is_number]
    claims = [c for c in claims if c.figure != "15"]  # of the drawn law, fitted by itself
    points = sorted({point for claim in claims for point in MEASURES[claim.id].points})
    return Problem(claims, fitted_constants(), experiments_of(points))


@dataclass(frozen=True)
class Optimum:
    """Where one start ended. cost: half the sum of squared residuals."""

    logs: Vector
    cost: float
    jacobian: Vector


def start(of: Problem, seed: int) -> Vector:
    """Logarithms drawn from the guesses; for seed 0 the guesses themselves."""
    guess = np.array([math.log(c.prior) for c in of.constants])
    sd = np.array([math.log(c.spread or 1) for c in of.constants])
    draw = np.random.default_rng([seed, 41]).standard_normal(len(guess)) if seed else 0.0
    return np.asarray(guess + 0.7 * sd * draw)


def descend(of: Problem, begin: Vector) -> Optimum:
    """Least squares from there."""
    from scipy.optimize import least_squares

    low, high = of.bounds()
    sd = np.array([math.log(c.spread or 1) for c in of.constants])
    begin = np.clip(begin, low + 1e-6, high - 1e-6)
    found = least_squares(
        of.residuals, begin, bounds=(low, high), x_scale=sd, diff_step=1e-3, max_nfev=60, ftol=1e-6
    )
    return Optimum(found.x, float(found.cost), found.jac)


def as_good(
    of: Problem, best: Optimum, draws: int, seed: int
) -> Iterator[tuple[Vector, float, bool]]:
    """Draws from what the residuals leave open: logarithms, cost, and whether it moved.

    A Metropolis walk from the best set, whose steps are shaped by the normal approximation there;
    it does not leave the bounds.
    """
    rng = np.random.default_rng([seed, 42])
    low, high = of.bounds()
    root = np.linalg.cholesky(np.linalg.inv(best.jacobian.T @ best.jacobian))
    root *= 2.0 / math.sqrt(len(best.logs))  # of wider steps too many would be refused
    at, at_cost = best.logs, best.cost
    for _ in range(draws):
        there, luck = at + root @ rng.standard_normal(len(at)), math.log(rng.random())
        moved = False
        if ((low <= there) & (there <= high)).all():
            cost = 0.5 * float(np.sum(of.residuals(there) ** 2))
            moved = luck < at_cost - cost
        if moved:
            at, at_cost = there, cost
        yield at, at_cost, moved
