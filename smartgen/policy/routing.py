"""Which node takes a request: a pure choice."""

from collections.abc import Collection, Sequence

RULES = ("round_robin", "least_loaded")


def choose(rule: str, turn: int, loads: Sequence[float], lost: Collection[int] = ()) -> int:
    """Number of the node that takes the turn-th request (from 0).

    loads: what each node has still to do, in any one unit; nodes that have least take turns. Nodes
    that are lost take nothing, unless all are.
    """
    nodes = [i for i in range(len(loads)) if i not in lost] or list(range(len(loads)))
    if rule == "round_robin":
        return nodes[turn % len(nodes)]
    return min(nodes, key=lambda i: (loads[i], (i - turn) % len(loads)))
