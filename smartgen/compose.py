"""From a composed configuration to values: the YAML names each class, the class checks its values."""

from dataclasses import fields
from typing import Any, Protocol

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from smartgen.experiment import Experiment, Outcome


class Backend(Protocol):
    """A world to run experiments in."""

    @property
    def name(self) -> str:
        """As it is called on the command line."""

    def run(self, experiment: Experiment) -> Outcome:
        """Run to the end; returns what every node recorded."""


def experiment_of(config: DictConfig) -> Experiment:
    """The experiment a configuration describes; raises SmartGenError for a value that is wrong."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    parts = {field.name: plain[field.name] for field in fields(Experiment)}
    parts["record"] = {"_target_": "smartgen.experiment.Record", **plain["record"]}
    built = instantiate({"_target_": "smartgen.experiment.Experiment", **parts}, _convert_="object")
    assert isinstance(built, Experiment)
    return built


def backend_of(config: DictConfig) -> Backend:
    """The backend a configuration names; importing it is left to this moment."""
    backend: Backend = instantiate(config.backend, _convert_="object")
    return backend
