"""The command line. A bare first word is a subcommand; anything else goes to Hydra.

Whatever is wrong with what was asked for ends in one line on stderr and exit code 1.
"""

import csv
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgen.errors import SmartGenError

if TYPE_CHECKING:
    from omegaconf import DictConfig

USAGE = """\
usage: smartgen [KEY=VALUE ...]              run one experiment, print a table, draw figures
       smartgen -m KEY=A,B,C ...             sweep over all combinations, in parallel
       smartgen experiment=NAME ...          a named experiment (may be a sweep)
       smartgen plot KIND RUN... [-o FILE]   draw runs, or the runs of a sweep, over each other
       smartgen --cfg job                    show the composed configuration
       smartgen --config-dir DIR ...         add schemes, models and cards of your own

experiments:   {experiment}
policies:      {policy}
backends:      {backend}
models:        {model}
networks:      {network}
selectors:     {selector}
selection:     {selection}
workloads:     {workload}
kinds of plot: ctl bars gaps stalls

Every key and its default: smartgen --cfg job. Results go to results/; the same sweep command
continues where it was interrupted.
"""


def main() -> None:
    """Run the command line; exits with 1 after any mistake, 130 after an interruption."""
    arguments = sys.argv[1:]
    try:
        if arguments in (["-h"], ["--help"], ["help"]):
            sys.stdout.write(_usage())
        elif arguments and arguments[0] == "plot":
            _plot(arguments[1:])
        elif arguments and arguments[0].isidentifier():
            raise SmartGenError(
                f"{arguments[0]!r} is neither a subcommand (plot, help) nor key=value; "
                "see smartgen --help"
            )
        else:
            _hydra()
    except KeyboardInterrupt:
        sys.stderr.write(f"smartgen: {_interrupted()}\n")
        sys.exit(130)
    except Exception as error:
        line = _one_line(error)
        if line is None:
            raise
        sys.stderr.write(f"smartgen: {line}\n")
        sys.exit(1)


def _usage() -> str:
    conf = Path(__file__).parent / "conf"
    groups = ("experiment", "policy", "backend", "model", "network", "selector", "selection")
    options = {
        group: " ".join(sorted(p.stem for p in (conf / group).glob("*.yaml") if p.stem != "base"))
        for group in (*groups, "workload")
    }
    return USAGE.format(**options)


# -- runs and sweeps


def _hydra() -> None:
    import hydra

    from smartgen import sweep

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises; main prints one line
    sweep.register_resolvers()
    decorate = hydra.main(version_base="1.3", config_path="pkg://smartgen.conf", config_name="config")
    try:
        decorate(_job)()
    except SystemExit as stop:  # argparse has printed its usage
        if stop.code not in (None, 0):
            sys.exit(1)
        raise
    except BaseException:
        config = sweep.started()
        if config is not None:
            sweep.remove_if_empty(Path(config.hydra.sweep.dir))
        raise
    config = sweep.started()
    if config is not None:
        _report_sweep(config)


def _job(config: "DictConfig") -> None:
    """One run, or one point of a sweep; may be called in a worker process."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from smartgen.sweep import remove_if_empty

    told = HydraConfig.get()
    folder = Path(told.runtime.output_dir)
    try:
        metrics, kept = _run(config, folder, _point_of(told))
    except BaseException:
        remove_if_empty(folder)
        raise
    if told.mode == RunMode.MULTIRUN:
        _say_progress(folder, metrics, kept)
    else:
        _report([folder], folder, list(config.figures))


def _point_of(told: Any) -> int | None:
    """The point's number in its sweep; null in a run of its own."""
    from omegaconf import OmegaConf

    return None if OmegaConf.is_missing(told.job, "num") else told.job.num


def _run(config: "DictConfig", folder: Path, point: int | None) -> tuple[dict[str, Any], bool]:
    """Run unless the folder holds this very result; returns its metrics, and whether it was kept."""
    from omegaconf import OmegaConf

    from smartgen.compose import backend_of, experiment_of
    from smartgen.metrics.store import read_run, write_run
    from smartgen.provenance import fingerprint, provenance
    from smartgen.sweep import is_done

    plain: Any = OmegaConf.to_container(config, resolve=True)
    if is_done(folder, fingerprint(plain)):
        return dict(read_run(folder).metrics), True
    experiment = experiment_of(config)
    backend = backend_of(config)
    outcome = backend.run(experiment)
    told = {**provenance(plain), "point": point}
    return write_run(folder, plain, told, backend.name, experiment, outcome), False


def _say_progress(folder: Path, metrics: dict[str, Any], kept: bool) -> None:
    from smartgen.sweep import NUM_POINTS, finished_points

    done = len(finished_points(folder.parent))
    total = os.environ.get(NUM_POINTS, "?")
    ttst_s = metrics["ttst_s"]["mean"]
    told = "kept" if kept else "no request finished" if ttst_s is None else f"TTST {ttst_s:.3f} s"
    sys.stderr.write(f"[{done}/{total}] {folder.name}: {told}\n")


def _report_sweep(config: "DictConfig") -> None:
    from smartgen.metrics.labels import differences
    from smartgen.metrics.store import read_run
    from smartgen.metrics.summary import summary_csv_rows
    from smartgen.sweep import finished_points

    folder = Path(config.hydra.sweep.dir)
    points = finished_points(folder)
    runs = [read_run(point) for point in points]
    differing = differences(runs)
    rows = [
        (
            {"policy": run.label, **{key: values[i] for key, values in differing.items()}},
            run.metrics,
        )
        for i, run in enumerate(runs)
    ]
    with (folder / "summary.csv").open("w", newline="") as file:
        csv.writer(file).writerows(summary_csv_rows(rows))
    _report(points, folder, list(config.figures))


def _report(runs: list[Path], folder: Path, figures: list[str]) -> None:
    """Print the table of runs and draw figures into a folder."""
    from smartgen.metrics.labels import labels
    from smartgen.metrics.store import read_run
    from smartgen.metrics.summary import comparison_table

    read = [read_run(path) for path in runs]
    rows = [(label, run.metrics) for label, run in zip(labels(read), read, strict=True)]
    sys.stdout.write(comparison_table(rows) + "\n")
    if figures:
        from smartgen.plot import draw

        for kind in figures:
            draw(kind, read, folder / f"{kind}.png")
    sys.stdout.write(f"\nresults: {_relative(folder)}\n")
    for kind in figures:
        sys.stdout.write(f"figure:  {_relative(folder / f'{kind}.png')}\n")


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# -- plot


def _plot(arguments: list[str]) -> None:
    from smartgen.metrics.store import read_run
    from smartgen.plot import draw
    from smartgen.sweep import finished_points

    output = None
    if "-o" in arguments:
        at = arguments.index("-o")
        output = Path(arguments[at + 1]) if at + 1 < len(arguments) else None
        arguments = arguments[:at] + arguments[at + 2 :]
    if len(arguments) < 2:
        raise SmartGenError("plot needs a kind (ctl, bars, gaps, stalls) and folders of runs")
    kind, *names = arguments
    folders: list[Path] = []
    for name in names:
        points = finished_points(Path(name))
        folders += points or [Path(name)]
    path = output or Path(f"{kind}.png")
    draw(kind, [read_run(folder) for folder in folders], path)
    sys.stdout.write(f"figure:  {path}\n")


# -- one line


def _interrupted() -> str:
    if "smartgen.sweep" not in sys.modules:
        return "interrupted"
    from smartgen import sweep

    config = sweep.started()
    if config is None:
        return "interrupted; nothing was written"
    points = len(sweep.finished_points(Path(config.hydra.sweep.dir)))
    return (
        f"interrupted; {points} of {sweep.num_points(config)} points are finished and kept, "
        "the same command runs the others"
    )


def _one_line(error: BaseException) -> str | None:
    """What to tell the user, or null for a fault that is ours and needs its traceback."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, SmartGenError):
            return " ".join(str(seen).split())
        seen = seen.__cause__ or seen.__context__
    module = type(error).__module__.partition(".")[0]
    if module in ("hydra", "omegaconf"):
        cause = error.__cause__
        text = str(cause) if type(cause).__module__.startswith("omegaconf") else str(error)
        return " ".join(text.split())
    if isinstance(error, OSError):
        return " ".join(str(error).split())
    return None
