"""Splitting a KV index into what is local and what is remote: Algorithm 1, as a pure reference.

The simulator's counts, the emulator's arrays and a GPU kernel must all agree with this file.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PADDED, LOCAL, REMOTE = 0, 1, 2
"""The mask's values: a padded token, an entry in local memory, an entry on a prefill node."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitIndex:
    """An index reordered so that each row's remote entries are one contiguous prefix."""

    index: NDArray[np.int64]  # [rows, k], remote first, then local, then padded
    num_remote: NDArray[np.int64]  # [rows]
    num_local: NDArray[np.int64]  # [rows]


def split_index(
    index: NDArray[np.int64], mask: NDArray[np.int8], rows_per_request: int
) -> SplitIndex:
    """Split index [rows, k] by mask [batch, seq_len].

    Row r belongs to request r // rows_per_request.
    The order of entries does not change attention, since each carries its position; equal mask
    values keep their order.
    """
    request = np.arange(index.shape[0]) // rows_per_request
    status = mask[request[:, None], index]  # [rows, k], operator 1
    # int8 negation is safe for 0, 1, 2; sorting on composite keys would overflow
    order = np.argsort(-status, axis=1, kind="stable")  # operator 4
    return SplitIndex(
        np.take_along_axis(index, order, axis=1),  # operator 5
        np.count_nonzero(status == REMOTE, axis=1).astype(np.int64),
        np.count_nonzero(status == LOCAL, axis=1).astype(np.int64),
    )
