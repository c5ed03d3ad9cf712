"""From a point to the experiment it stands for."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from smartgen.claims.facts import Point

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from smartgen.experiment import Experiment


def configs_of(commands: Iterable[Sequence[str]]) -> "list[DictConfig]":
    """What smartgen makes of each list of arguments."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    from smartgen import sweep

    sweep.register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        return [compose("config", overrides=list(command)) for command in commands]


def experiments_of(points: Sequence[Point]) -> "dict[Point, Experiment]":
    """The experiment of every point."""
    from smartgen.compose import experiment_of

    configs = configs_of(point.arguments for point in points)
    return {p: experiment_of(config) for p, config in zip(points, configs, strict=True)}
