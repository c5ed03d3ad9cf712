"""Sums over a batch, against the same sums from scratch."""

import numpy as np
import pytest

from smartgen.nodes.batch import Batch
from smartgen.nodes.landings import Landings
from smartgen.nodes.slot import Slot
from smartgen.workload import Request

WINDOWED = ("model.model_type=gemma3_text", "+model.sliding_window=64")
CLOSED = ("selection=exponent", "mask_update=iteration")


def random_batch(experiment, grows, seed):
    """A batch that requests join and leave at random; yields it after every iteration begun."""
    rng = np.random.default_rng(seed)
    batch, joined = Batch(experiment.geometry, grows), {}
    plan = experiment.planner().plans_of(experiment.requests)[0]
    for number in range(40):
        slots = []
        for _ in range(rng.integers(0, 3)):
            tokens = int(rng.integers(1, 200))
            request = Request(number, 0.0, tokens, 0, 99)
            landings = Landings(None, experiment.geometry.num_layers)
            draw = experiment.draw(number, tokens)
            slot = Slot(
                100 * number + len(slots), request, 0, experiment.mask(plan), draw, landings, 0
            )
            slots.append(slot)
            joined[slot.number] = (slot, batch.iteration + 1)
        batch.join(slots)
        for left in [n for n in joined if rng.random() < 0.2]:
            batch.leave(left)
            del joined[left]
        batch.advance()
        if joined:
            yield batch, list(joined.values())


@pytest.mark.parametrize("model", [(), WINDOWED])
@pytest.mark.parametrize("selection", [CLOSED, ()])
@pytest.mark.parametrize("grows", [True, False])
def test_sums_over_a_batch_are_those_from_scratch(tiny, model, selection, grows):
    experiment = tiny(*selection, *model)
    seen = 0
    for batch, members in random_batch(experiment, grows, seed=3):
        slots = [slot for slot, _ in members]
        steps = [batch.iteration - first + 1 for _, first in members]
        new = [step - 1 if grows else 0 for step in steps]
        cached = [slot.request.prompt_tokens + n for slot, n in zip(slots, new, strict=True)]
        assert batch.slots == slots and len(batch) == len(slots)
        assert [batch.step_of(slot) for slot in slots] == steps
        assert batch.cached_tokens == sum(cached)
        assert batch.longest_tokens == max(cached)
        reach = experiment.geometry.reach
        assert list(batch.reached) == sum(reach(n) for n in cached).tolist()
        selected = sum(slot.draw.selected_at(n) for slot, n in zip(slots, new, strict=True))
        assert batch.selected(batch.reached) == pytest.approx(selected, rel=1e-12)
        seen += 1
    assert seen > 20
