"""What the engine may expect of a runtime is the same on SimPy and on asyncio."""

import pytest

from smartgen.emu.clock import run
from smartgen.emu.runtime import EmuRuntime
from smartgen.errors import SmartGenError
from smartgen.sim.runtime import SimRuntime


def in_simulation(program):
    runtime, log = SimRuntime(), []
    runtime.run(program(runtime, log))
    return log, runtime.now


def in_emulation(program):
    log, now_s = [], []

    async def main():
        runtime = EmuRuntime()
        try:
            await program(runtime, log)
        finally:
            now_s.append(runtime.now)

    run(main())
    return log, now_s[0]


@pytest.fixture(params=[in_simulation, in_emulation], ids=["sim", "emu"])
def play(request):
    return request.param


def test_acts_start_when_asked_for_and_gathering_takes_the_longest(play):
    async def program(runtime, log):
        async def work():
            await runtime.after(1.0)
            log.append(runtime.now)

        await runtime.gather(runtime.after(0.5), work(), runtime.after(2.0))
        log.append(runtime.now)
        started = runtime.after(1.0)
        await runtime.after(0.25)
        await started
        log.append(runtime.now)

    assert play(program) == ([1.0, 2.0, 3.0], 3.0)


def test_times_are_exact_sums_and_nothing_waits_for_real(play):
    async def program(runtime, log):
        for _ in range(1000):
            await runtime.after(0.1)
        log.append(runtime.now)

    expected = 0.0
    for _ in range(1000):
        expected += 0.1
    log, now_s = play(program)
    assert log == [now_s] == [expected]


def test_an_event_lets_everybody_go_on_once_and_afterwards_holds_nobody_up(play):
    async def program(runtime, log):
        event = runtime.event()

        async def wait(name):
            await event.wait()
            log.append((name, runtime.now))

        async def set_it():
            await runtime.after(1.0)
            event.set()
            event.set()

        await runtime.gather(wait("a"), wait("b"), set_it())
        await event.wait()
        log.append(("late", runtime.now))

    log, _ = play(program)
    assert sorted(log) == [("a", 1.0), ("b", 1.0), ("late", 1.0)]


def test_a_failure_in_a_gathering_cancels_the_others_and_is_raised(play):
    async def program(runtime, log):
        async def fail():
            await runtime.after(1.0)
            raise ValueError("planted")

        async def work():
            try:
                await runtime.after(5.0)
                log.append("never")
            finally:
                log.append(("cleaned up", runtime.now))

        try:
            await runtime.gather(work(), fail())
        except ValueError as error:
            log.append((str(error), runtime.now))

    log, _ = play(program)
    assert log == [("cleaned up", 1.0), ("planted", 1.0)]


def test_a_scope_ends_with_its_first_failure(play):
    async def program(runtime, log):
        scope = runtime.scope()

        async def work(seconds, fails):
            try:
                await runtime.after(seconds)
                log.append(seconds)
                if fails:
                    raise ValueError("planted")
            finally:
                log.append("out")

        scope.spawn(work(3.0, fails=False))
        scope.spawn(work(1.0, fails=False))
        scope.spawn(work(2.0, fails=True))
        with pytest.raises(ValueError, match="planted"):
            await scope.join()
        log.append(runtime.now)

    log, _ = play(program)
    assert log == [1.0, "out", 2.0, "out", "out", 2.0]


def test_a_cancelled_scope_is_joined_without_an_error_and_leaves_its_neighbours_alone(play):
    async def program(runtime, log):
        doomed, other = runtime.scope(), runtime.scope()

        async def work(name):
            await runtime.after(2.0)
            log.append(name)

        doomed.spawn(work("doomed"))
        other.spawn(work("other"))
        await runtime.after(1.0)
        doomed.cancel()
        await doomed.join()
        log.append(runtime.now)
        await other.join()

    log, now_s = play(program)
    assert log == [1.0, "other"] and now_s == 2.0


def test_a_task_may_cancel_the_scope_it_is_in(play):
    async def program(runtime, log):
        scope = runtime.scope()

        async def stay():
            await runtime.event().wait()

        async def leave():
            await runtime.after(1.0)
            scope.cancel()
            log.append("said so")

        scope.spawn(stay())
        scope.spawn(leave())
        await scope.join()

    assert play(program) == (["said so"], 1.0)


def test_a_world_in_which_nothing_can_happen_any_more_says_so(play):
    async def program(runtime, log):
        await runtime.after(1.5)
        await runtime.event().wait()

    with pytest.raises(SmartGenError, match=r"nothing can happen any more at 1\.5"):
        play(program)


def test_what_a_timers_callback_raises_ends_the_run(play):
    async def program(runtime, log):
        def broken(_):
            raise KeyError("planted")

        runtime.call_at(1.0, broken)
        await runtime.after(5.0)
        log.append("never")

    with pytest.raises(KeyError, match="planted"):
        play(program)
