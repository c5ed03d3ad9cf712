"""A model as values: what its cache weighs and what its layers cost. Reads Hugging Face's keys."""

from smartgen.model.model import Model

__all__ = ["Model"]
