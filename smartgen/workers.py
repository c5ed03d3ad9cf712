"""Work over all cores in processes of their own, as sweeps have them, for longer commands."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from smartgen.launch import workers_deaf_to_interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")


def over_cores(
    act: Callable[[Item], Result], items: Sequence[Item], kept: str | None = None
) -> Iterator[tuple[int, Result]]:
    """Number and result of every item, as they come.

    A mistake or an interruption ends the workers at once. kept: what finished items are called, if
    they are kept; an interruption then says how many there are.
    """
    from joblib.externals.loky import as_completed, get_reusable_executor

    done = 0
    with workers_deaf_to_interrupts():
        executor = get_reusable_executor()
        try:
            numbers = {executor.submit(act, item): i for i, item in enumerate(items)}
            for future in as_completed(numbers):
                result = future.result()
                done += 1
                yield numbers[future], result
        except KeyboardInterrupt:
            executor.shutdown(kill_workers=True)
            raise KeyboardInterrupt(*([f"{done} of {len(items)} {kept}"] if kept else [])) from None
        except BaseException:
            executor.shutdown(kill_workers=True)
            raise
