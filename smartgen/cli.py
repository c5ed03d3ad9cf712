"""The command line. A bare first word is a subcommand; anything else goes to Hydra.

Whatever is wrong with what was asked for ends in one line on stderr and exit code 1.
"""

import csv
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from smartgen.errors import SmartGenError
from smartgen.mistakes import is_interruption, one_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from smartgen.experiment import Watch
    from smartgen.metrics.store import Run
    from smartgen.sweep import Started

USAGE = """\
usage: smartgen [KEY=VALUE ...]              run one experiment, print a table, draw figures
       smartgen -m KEY=A,B,C ...             sweep over all combinations, in parallel
       smartgen experiment=NAME ...          a named experiment (may be a sweep)
       smartgen plot KIND RUN... [-o FILE]   draw runs, or the runs of a sweep, over each other
       smartgen timeline RUN [-o FILE]       a timeline for ui.perfetto.dev (record.transfers=true)
       smartgen calibrate FILE... [-o CARD]  constants of a card from tables of measurements
       smartgen calibrate [-o FOLDER]        this machine, measured: cards of a host and a network
       smartgen reproduce [-o FOLDER]        the paper's evaluation, claimed against simulated
       smartgen fit [-o FILE]                constants fitted to some of the paper's claims
       smartgen prefill N HOST:PORT ...      a prefill process by itself (backend=emu emu.peers=...)
       smartgen --cfg job                    show the composed configuration
       smartgen --config-dir DIR ...         add schemes, models and cards of your own
       smartgen --version

experiments:   {experiment}
policies:      {policy}
backends:      {backend}
models:        {model}
GPUs:          {gpu}
hosts:         {host}
networks:      {network}
selectors:     {selector}
selection:     {selection}
workloads:     {workload}
kinds of plot: ctl bars gaps stalls cdf load rate needs latencies phases map orders importance
               agreement

Every key and its default: smartgen --cfg job. Results go to results/; the same sweep command
continues where it was interrupted.
"""


LONGER = {
    "calibrate": "smartgen.calibrate.command",
    "reproduce": "smartgen.reproduce.command",
    "fit": "smartgen.claims.command",
    "prefill": "smartgen.emu.processes.command",
}
"""Subcommands with a module of their own: its run takes arguments and -o, returns the answer."""

_SUBCOMMANDS = ", ".join(("plot", "timeline", *LONGER, "help"))


def main() -> None:
    """Run the command line; exits with 1 after any mistake, 130 after an interruption."""
    try:
        _dispatch(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read stdout has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        if is_interruption(error):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # end in peace
            _stop(_interrupted(error), 130)
        line = one_line(error)
        if line is None:
            raise
        kept = _kept() or "0 "
        _stop(line if kept.startswith("0 ") else f"{line}; {kept}", 1)


def _stop(line: str, code: int) -> NoReturn:
    sys.stderr.write(f"smartgen: {' '.join(line.split())}\n")
    sys.exit(code)


def _dispatch(arguments: list[str]) -> None:
    if arguments == ["help"] or not {"-h", "--help"}.isdisjoint(arguments):
        sys.stdout.write(_usage())
    elif "--version" in arguments:
        from smartgen.provenance import program_version

        sys.stdout.write(f"smartgen {program_version()}\n")
    elif arguments and arguments[0] == "plot":
        _plot(arguments[1:])
    elif arguments and arguments[0] == "timeline":
        _timeline(arguments[1:])
    elif arguments and arguments[0] in LONGER:
        subcommand = import_module(LONGER[arguments[0]])
        sys.stdout.write(subcommand.run(*_split_output(arguments[1:])))
    elif arguments and arguments[0].isidentifier():
        raise SmartGenError(
            f"{arguments[0]!r} is neither a subcommand ({_SUBCOMMANDS}) nor "
            "key=value; see smartgen --help"
        )
    else:
        _hydra()


def _usage() -> str:
    conf = Path(__file__).parent / "conf"
    groups = ("experiment", "policy", "backend", "model", "gpu", "host", "network")
    options = {
        group: " ".join(sorted(p.stem for p in (conf / group).glob("*.yaml") if p.stem != "base"))
        for group in (*groups, "selector", "selection", "workload")
    }
    return USAGE.format(**options)


# -- runs and sweeps


def _hydra() -> None:
    import hydra

    from smartgen import sweep

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises; main prints one line
    sweep.forget()
    sweep.register_resolvers()
    decorate = hydra.main(
        version_base="1.3", config_path="pkg://smartgen.conf", config_name="config"
    )
    try:
        with _held_stderr(), sweep.ends:
            decorate(_job)()
    except BaseException as error:
        begun = sweep.started()
        if begun is not None:
            sweep.tidy(begun)
        if isinstance(error, sweep.Refused):
            raise error.mistake  # noqa: B904 - it has a cause of its own
        raise
    begun = sweep.started()
    if begun is not None:
        _report_command(begun)


class _Held(io.StringIO):
    """What Hydra writes to stderr: usage, which job failed. We say it in one line or not at all."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def fileno(self) -> int:
        return self.stream.fileno()


@contextmanager
def _held_stderr() -> Iterator[None]:
    """Hold what is written to stderr until all went well; of a refusal, keep what is told."""
    held = _Held(sys.stderr)
    sys.stderr = held
    try:
        yield
    except SystemExit as stop:
        if stop.code not in (None, 0):
            lines = held.getvalue().splitlines() or ["refused"]
            raise SmartGenError(lines[-1].partition(" error: ")[2] or lines[-1]) from None
        raise
    finally:
        sys.stderr = held.stream
    sys.stderr.write(held.getvalue())


def _job(config: "DictConfig") -> None:
    """One run, or one point of a sweep; may be called in a worker process, on another machine."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from smartgen import launch, sweep
    from smartgen.progress import Notes, of_point, of_run

    told = HydraConfig.get()
    folder = Path(told.runtime.output_dir)
    if told.mode != RunMode.MULTIRUN:
        stream = getattr(sys.stderr, "stream", sys.stderr)
        _run(config, folder, None, partial(of_run, stream))
        return
    launch.end_when_told()
    command = sweep.command_of(told)
    number, notes = told.job.num, Notes(Path(command.notes))
    with _named_mistakes(folder.name):
        os.chdir(command.cwd)
        watching = partial(of_point, notes, number, folder.name)
        metrics, kept = _run(config, folder, number, watching)
    notes.done(number, folder.name, _came_to(metrics, kept))


@contextmanager
def _named_mistakes(point: str) -> Iterator[None]:
    """Whatever is wrong with a point is told with its name."""
    try:
        yield
    except Exception as error:
        line = one_line(error)
        if line is None:
            error.add_note(traceback.format_exc())  # a worker's is lost on its way
            raise
        raise SmartGenError(
            line if point in (*line.split(), "point") else f"{point}: {line}"
        ) from error


def _run(
    config: "DictConfig",
    folder: Path,
    point: int | None,
    watching: Callable[[int], AbstractContextManager["Watch"]],
) -> tuple[dict[str, Any], bool]:
    """Run, or keep what is there; returns the metrics and whether they were kept."""
    from smartgen.compose import backend_of, experiment_of, plain_of
    from smartgen.metrics.store import read_run, write_run
    from smartgen.provenance import provenance
    from smartgen.sweep import is_done

    experiment = experiment_of(config)
    backend = backend_of(config)
    plain = plain_of(config)
    told = {**provenance(plain), "point": point}
    if is_done(folder, told["fingerprint"]):
        return dict(read_run(folder).metrics), True
    with watching(len(experiment.requests)) as watch:
        outcome = backend.run(experiment, watch)
        return write_run(folder, plain, told, backend.name, experiment, outcome), False


def _came_to(metrics: dict[str, Any], kept: bool) -> str:
    ttst_s = metrics["ttst_s"]["mean"]
    return "kept" if kept else "no request finished" if ttst_s is None else f"TTST {ttst_s:.3f} s"


def _report_command(begun: "Started") -> None:
    from smartgen.compose import figures_of
    from smartgen.metrics.store import read_run

    runs = [read_run(folder) for folder in begun.folders]
    if begun.points:
        _write_summary(runs, begun.folder / "summary.csv")
    _report(runs, begun.folder, figures_of(begun.config))


def _write_summary(runs: "list[Run]", path: Path) -> None:
    """What differs between points, and their metrics, as a table for other programs."""
    from smartgen.metrics.compare import summary_csv_rows
    from smartgen.metrics.labels import differences

    differing = differences(runs)
    rows = [
        (
            {"policy": run.label, **{key: values[i] for key, values in differing.items()}},
            run.metrics,
        )
        for i, run in enumerate(runs)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(summary_csv_rows(rows))


def _report(runs: "list[Run]", folder: Path, figures: list[str]) -> None:
    """Print open workloads and the table of runs, and draw figures into a folder."""
    from smartgen.metrics.compare import comparison_table
    from smartgen.metrics.emulation import emulation_lines
    from smartgen.metrics.labels import labels
    from smartgen.workload.echo import echo_line

    echoes = [run.metrics["workload"] for run in runs]
    for line in dict.fromkeys(echo_line(echo) for echo in echoes if not echo["closed"]):
        sys.stdout.write(f"workload: {line}\n")
    rows = [(label, run.metrics) for label, run in zip(labels(runs), runs, strict=True)]
    sys.stdout.write(comparison_table(rows) + "\n")
    for line in emulation_lines([run.metrics for run in runs]):
        sys.stdout.write(f"{line}\n")
    if figures:
        from smartgen.plot import draw

        for kind in figures:
            draw(kind, runs, folder / f"{kind}.png")
    sys.stdout.write(f"\nresults: {_relative(folder)}\n")
    for kind in figures:
        sys.stdout.write(f"figure:  {_relative(folder / f'{kind}.png')}\n")


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# -- plot


def _plot(arguments: list[str]) -> None:
    from smartgen.errors import one_of
    from smartgen.metrics.store import read_run
    from smartgen.plot import KINDS, draw
    from smartgen.sweep import finished_points

    arguments, output = _split_output(arguments)
    if len(arguments) < 2:
        raise SmartGenError(f"plot needs a kind ({', '.join(KINDS)}) and folders of runs")
    kind, *names = arguments
    one_of("plot", kind, KINDS)
    folders = [folder for name in names for folder in finished_points(Path(name)) or [Path(name)]]
    path = output or Path(kind)
    if path.suffix not in (".png", ".pdf"):
        path = path.with_name(f"{path.name}.png")
    draw(kind, [read_run(folder) for folder in folders], path)
    sys.stdout.write(f"figure:  {path}\n")


def _split_output(arguments: list[str]) -> tuple[list[str], Path | None]:
    """Take -o FILE out of arguments."""
    if "-o" not in arguments:
        return arguments, None
    at = arguments.index("-o")
    if at + 1 == len(arguments):
        raise SmartGenError("-o needs the file to write to")
    return arguments[:at] + arguments[at + 2 :], Path(arguments[at + 1])


def _timeline(arguments: list[str]) -> None:
    from smartgen.metrics.store import read_run
    from smartgen.metrics.timeline import write_timeline

    arguments, output = _split_output(arguments)
    if len(arguments) != 1:
        raise SmartGenError(f"timeline needs one folder of a run, not {len(arguments)}")
    run = read_run(Path(arguments[0]))
    path = output or run.folder / "timeline.json.gz"
    write_timeline(run, path)
    sys.stdout.write(f"timeline: {path} (open it at ui.perfetto.dev)\n")


# -- what is kept


def _interrupted(error: BaseException) -> str:
    told = error.args[0] if isinstance(error, KeyboardInterrupt) and error.args else None
    kept = _kept() if told is None else f"{told} are finished and kept"
    if kept is None:
        return "interrupted; nothing was written"
    return f"interrupted; {kept}, the same command runs the others"


def _kept() -> str | None:
    """What is kept of the sweep that was begun, if one was."""
    if "smartgen.sweep" not in sys.modules:
        return None
    from smartgen import sweep

    begun = sweep.started()
    if begun is None or not begun.points:
        return None
    done = sweep.kept_points(begun)
    return f"{done} of {len(begun.points)} points {'is' if done == 1 else 'are'} finished and kept"
