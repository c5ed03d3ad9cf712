"""What launchers of sweeps need besides: to end with the command, to name what failed.

joblib and Ray end their workers themselves. Jobs of submitit would outlive the command, and the
first that is lost would hide the others.
"""

import _thread
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from smartgen.errors import SmartGenError

NameOf = Callable[[Sequence[str]], str]
"""A point's name, from its overrides."""

_CANCEL_S = 10.0
"""How long jobs on this machine are waited for once they are cancelled."""


@contextmanager
def held(config: DictConfig, folder: Path, name_of: NameOf) -> Iterator[None]:
    """Holds what a sweep's launcher starts, so that it ends with the command."""
    launcher = str(config.hydra.launcher.get("_target_", ""))
    with workers_deaf_to_interrupts():
        if "submitit" in launcher:
            with _jobs_of_submitit(folder / ".submitit", name_of):
                yield
        elif "ray_launcher" in launcher:
            with _quiet_ray(config):
                yield
        else:
            yield


# -- interruptions


@contextmanager
def workers_deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C reaches this process only, which ends its workers; they would print tracebacks.

    Workers inherit the mask of the thread that starts them. So this thread masks the signal, and
    another waits for it and interrupts this one.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "sigwait"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it unmasks the signal when it starts
    over = threading.Event()

    def pass_on() -> None:
        while True:
            signal.sigwait({signal.SIGINT})
            if over.is_set():
                return
            _thread.interrupt_main()

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiting = threading.Thread(target=pass_on, daemon=True)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        if waiting.ident is not None:
            signal.pthread_kill(waiting.ident, signal.SIGINT)
        waiting.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """What is inside is not cut short; an interruption meanwhile is one at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


# -- submitit


class _Job:
    """A job whose result is waited for; if there is none, that is the point's failure."""

    def __init__(self, job: Any, point: str) -> None:
        self.job, self.point = job, point
        self.is_lost = False

    def results(self) -> list[Any]:
        """The job's result, in a list as submitit has it."""
        from hydra.core.utils import JobReturn, JobStatus

        errors = import_module("submitit.core.utils")
        try:
            return list(self.job.results())
        except (errors.UncompletedJobError, errors.FailedJobError):
            self.is_lost = True
            log, state = os.path.relpath(self.job.paths.stderr), self.job.state
            ended = "ended" if state == "FINISHED" else f"ended ({state})"
            told = f"job {self.job.job_id} {ended} without a result; its log is {log}"
            lost = SmartGenError(f"{self.point}: {told}")
            return [JobReturn(status=JobStatus.FAILED, _return_value=lost)]


@contextmanager
def _jobs_of_submitit(logs: Path, name_of: NameOf) -> Iterator[None]:
    """All jobs that are submitted are waited for, or cancelled if the command is over before.

    Of what submitit writes, nothing is kept unless a job was lost.
    """
    executor: Any = import_module("submitit").AutoExecutor
    logging.getLogger("submitit").setLevel(logging.ERROR)  # it would write between our lines
    plain = executor.map_array
    jobs: list[_Job] = []

    def map_array(self: Any, act: Any, points: Sequence[Any], *others: Sequence[Any]) -> list[_Job]:
        with _interrupted_later():
            submitted = plain(self, act, points, *others)
            made = [_Job(job, name_of(at)) for job, at in zip(submitted, points, strict=True)]
            jobs.extend(made)
        return made

    executor.map_array = map_array
    try:
        yield
    except BaseException:
        _cancel([it.job for it in jobs if not it.job.done()])
        raise
    finally:
        del executor.map_array
        if not any(it.is_lost for it in jobs):
            shutil.rmtree(logs, ignore_errors=True)


def _cancel(jobs: Sequence[Any]) -> None:
    local = import_module("submitit").LocalJob
    for job in {job.job_id.partition("_")[0]: job for job in jobs}.values():
        if not isinstance(job, local):  # a whole array at once
            folder, number = job.paths.folder, job.job_id.partition("_")[0]
            type(job)(folder, number).cancel(check=False)
    here = [job for job in jobs if isinstance(job, local)]
    give_up_s = time.monotonic() + _CANCEL_S
    while here and time.monotonic() < give_up_s:
        for job in here:
            with suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)  # passed on to the point
        time.sleep(0.1)
        here = [job for job in here if not job.done()]


def end_when_told() -> None:
    """A job of submitit ends at once if it is told to; what it has not finished is run again."""
    if "SUBMITIT_EXECUTOR" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# -- Ray


@contextmanager
def _quiet_ray(config: DictConfig) -> Iterator[None]:
    """Ray says nothing that we say, and is shut down before what it left is tidied."""
    with open_dict(config):
        init = config.hydra.launcher.ray.init
        init.setdefault("log_to_driver", False)
        init.setdefault("logging_level", "warning")
        if init.get("address"):
            init.setdefault("object_store_memory", None)  # the launcher's own makes Ray refuse
    try:
        yield
    finally:
        import_module("ray").shutdown()
