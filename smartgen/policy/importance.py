"""Importance per block (Equation 1), and the profile: importance plus where it came from."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smartgen.errors import SmartGenError
from smartgen.kv import Geometry


def block_importance(
    selected: Sequence[NDArray[np.int64]], geometry: Geometry
) -> NDArray[np.float64]:
    """Equation 1: I[l, m], the mean over a block's entries of how often each was selected.

    selected holds one array [L, tokens] for each calibration request: how often each entry was
    selected while decoding. Blocks are relative positions, so requests may differ in length; a
    request in which a block is empty says nothing about that block.
    """
    total = np.zeros((geometry.num_layers, geometry.blocks_per_layer))
    entries = np.zeros_like(total)
    for counts in selected:
        bounds = geometry.bounds(counts.shape[1])  # [L, M + 1]
        cumulated = np.concatenate(
            [np.zeros((geometry.num_layers, 1)), np.cumsum(counts, axis=1)], axis=1
        )
        total += np.diff(np.take_along_axis(cumulated, bounds, axis=1), axis=1)
        entries += np.diff(bounds, axis=1)
    return np.divide(total, entries, out=np.zeros_like(total), where=entries > 0)


@dataclass(frozen=True, eq=False)
class Profile:
    """Importance [L, M] of a model's blocks for a range of prompt lengths.

    source says how it was made: measured (which model, which texts) or parametric (which law).
    """

    importance: NDArray[np.float64]
    source: str
    min_tokens: int
    max_tokens: int

    def check(self, geometry: Geometry) -> None:
        """Refuse a profile made for another number of layers or blocks."""
        made_for = self.importance.shape
        wanted = (geometry.num_layers, geometry.blocks_per_layer)
        if made_for != wanted:
            raise SmartGenError(
                f"profile {self.source!r} holds {made_for[0]} layers x {made_for[1]} blocks; "
                f"this model needs {wanted[0]} layers x {wanted[1]} blocks"
            )

    def covers(self, num_tokens: int) -> bool:
        """Whether a prompt of this length lies in the profile's range."""
        return self.min_tokens <= num_tokens <= self.max_tokens

    def save(self, path: Path) -> None:
        """Write one .npz file, whole or not at all."""
        about = {
            "source": self.source,
            "min_tokens": self.min_tokens,
            "max_tokens": self.max_tokens,
        }
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".partial", delete=False
        ) as file:
            np.savez_compressed(file, importance=self.importance, about=np.array(json.dumps(about)))
        Path(file.name).replace(path)

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """Read what save wrote; anything else is refused by name."""
        try:
            with np.load(path, allow_pickle=False) as file:
                importance = np.asarray(file["importance"], dtype=np.float64)
                about = json.loads(str(file["about"]))
                profile = cls(
                    importance,
                    str(about["source"]),
                    int(about["min_tokens"]),
                    int(about["max_tokens"]),
                )
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise SmartGenError(
                f"profile file {str(path)!r} cannot be read ({type(error).__name__}); "
                "it must be a file that Profile.save wrote"
            ) from error
        if importance.ndim != 2 or not np.isfinite(importance).all():
            raise SmartGenError(
                f"profile file {str(path)!r} must hold finite numbers [layers, blocks]"
            )
        return profile
