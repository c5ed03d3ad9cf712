"""Few rows that stand for many: what is kept of a table beside the card that rests on it."""

import numpy as np

from smartgen.calibrate.constants import Rule
from smartgen.calibrate.fit import fit_law
from smartgen.calibrate.tables import Table


def representative(rule: Rule, table: Table, rows: int = 12) -> list[int]:
    """Numbers of the rows that stand for those a rule uses, in order of their work.

    The rows used are cut by their work into as many equal parts, and of each part the row is taken
    whose time, over what the law of all rows says, is in the middle.
    """
    used = [i for i, row in enumerate(table.rows) if rule.counts(row)]
    work = np.array([rule.work(table.rows[i]) for i in used])
    seconds = np.array([float(table.rows[i]["time_s"]) for i in used])
    law = fit_law(work, seconds)
    off = seconds / (law.overhead_s + work / law.rate)
    parts = np.array_split(np.lexsort((seconds, work)), min(rows, len(used)))
    middles = [part[np.argsort(off[part], kind="stable")[len(part) // 2]] for part in parts]
    return [used[i] for i in middles]
