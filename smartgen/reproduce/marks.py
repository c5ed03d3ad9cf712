"""Where the paper's stated values stand in a figure, given the runs that they are relative to."""

from collections.abc import Sequence

from smartgen.claims.claims import all_claims
from smartgen.claims.facts import Point
from smartgen.claims.measures import MEASURES, Found, Growth, Peak, Ratio
from smartgen.plot.marks import Mark


def marks_of(points: Sequence[Point], found: Found) -> list[Mark]:
    """A mark for each claim about one of these points relative to another of them."""
    marks = []
    for claim in all_claims():
        measure = MEASURES.get(claim.id)
        if claim.is_number and isinstance(measure, Ratio | Growth | Peak):
            point, value = measure.mark(found, claim.value)
            if point in points and set(measure.points) <= set(points):
                marks.append(Mark(points.index(point), measure.metric, value, claim.id))
    return marks
