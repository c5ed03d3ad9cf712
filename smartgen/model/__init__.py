"""A model as values: what its cache weighs and what its layers cost. Reads Hugging Face's keys."""

from smartgen.model.model import Attention, FeedForward, Model
from smartgen.model.read import read_model, resolve

__all__ = ["Attention", "FeedForward", "Model", "read_model", "resolve"]
