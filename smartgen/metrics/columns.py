"""Columns of tables as numpy arrays."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = npt.NDArray[np.float64]


def floats(table: "pa.Table", name: str) -> Numbers:
    """A column of numbers as floats; null is NaN."""
    return np.asarray(table.column(name).to_numpy(), np.float64)


def equals(table: "pa.Table", name: str, text: str) -> npt.NDArray[np.bool_]:
    """In which rows a column of text holds this one; null is no text."""
    import pyarrow.compute

    found = pyarrow.compute.equal(table.column(name), text).fill_null(False)
    return np.asarray(found.to_numpy(), np.bool_)
