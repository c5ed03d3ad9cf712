"""What makers specify for a GPU: a table gives a rate, and a card a share of the specified one."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """A GPU's specification; peak_tflops is of dense 16-bit matrices."""

    name: str
    pattern: str
    memory_gbytes_per_s: float
    peak_tflops: float


SPECS = (
    Spec("NVIDIA L20", r"\bl20\b", 864.0, 119.5),
    Spec("NVIDIA L40S", r"\bl40s\b", 864.0, 362.0),
    Spec("NVIDIA A100-SXM4-80GB", r"\ba100[ -]sxm4?\b(?!-40gb)", 2039.0, 312.0),
    Spec("NVIDIA A100-PCIE-80GB", r"\ba100[ -]pcie\b(?!-40gb)", 1935.0, 312.0),
    Spec("NVIDIA V100S-PCIE-32GB", r"\bv100s\b", 1134.0, 130.0),
    Spec("NVIDIA V100-PCIE", r"\bv100[ -]pcie\b", 900.0, 112.0),
    Spec("NVIDIA H100-SXM5-80GB", r"\bh100[ -]sxm5?\b", 3350.0, 989.0),
    Spec("NVIDIA H200-SXM-141GB", r"\bh200\b", 4800.0, 989.0),
)


def spec_of(text: str) -> Spec | None:
    """The GPU that a text names, if it is one of those known here."""
    plain = text.lower().replace("_", "-")
    return next((spec for spec in SPECS if re.search(spec.pattern, plain)), None)
