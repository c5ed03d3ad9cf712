"""Tells prefill nodes when the network idles, and how much of each request may be pushed then."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from smartgen.engine.messages import Idle
from smartgen.engine.protocols import Channel, Step
from smartgen.metrics.records import Recorder
from smartgen.policy import Plan, Policy, Quotas, fixed_quotas, observed_quotas


class Decoding(Protocol):
    """A request of the batch."""

    plan: Plan
    peer: int
    first_iteration: int


class Idleness:
    """What is announced in the iteration at hand: decided when it begins, by observation or not.

    It is begun once for each iteration, and announcing changes nothing: an iteration may be run
    again.
    """

    def __init__(
        self,
        policy: Policy,
        channels: Sequence[Channel],
        is_lost: Callable[[int], bool],
        recorder: Recorder,
    ) -> None:
        self._policy, self._channels = policy, channels
        self._is_lost, self._recorder = is_lost, recorder
        self._asked: dict[int, int] = {}
        """Blocks of each incomplete request that an observed quota has covered so far."""
        self._groups: list[tuple[int, tuple[int, ...], tuple[int, ...], list[tuple[int, ...]]]] = []

    def begin(self, step: Step[Any], batch: Mapping[int, Decoding], iteration: int) -> None:
        """Decide what to tell whom in this iteration: peer, its requests, their steps, quotas."""
        steps = {}
        for request_id in step.incomplete:
            number = iteration - batch[request_id].first_iteration + 1
            if self._policy.announces_idle(number):
                steps[request_id] = number
        quotas = self._quotas(step, batch, steps)
        groups: dict[int, list[int]] = {}
        for request_id in quotas:
            groups.setdefault(batch[request_id].peer, []).append(request_id)
        self._groups = [
            (
                peer,
                tuple(ids),
                tuple(steps[i] for i in ids),
                list(zip(*[quotas[i] for i in ids], strict=True)),
            )
            for peer, ids in groups.items()
        ]

    def announce(self, _: Step[Any], layer: int) -> None:
        """A layer's attention starts."""
        for peer, requests, steps, quotas in self._groups:
            if any(quotas[layer]) and not self._is_lost(peer):
                self._channels[peer].send(Idle(layer, requests, steps, quotas[layer]))

    def _quotas(
        self, step: Step[Any], batch: Mapping[int, Decoding], steps: Mapping[int, int]
    ) -> dict[int, Quotas]:
        if not steps:
            return {}
        if self._policy.speculation == "observed":
            return self._observed(step, batch, steps)
        return {
            request_id: self._fixed(batch[request_id].plan, number)
            for request_id, number in steps.items()
        }

    def _fixed(self, plan: Plan, step: int) -> Quotas:
        return fixed_quotas(self._policy, plan.num_layers, plan.blocks_per_layer, step)

    def _observed(
        self, step: Step[Any], batch: Mapping[int, Decoding], steps: Mapping[int, int]
    ) -> dict[int, Quotas]:
        """Have the policy decide by what the node has seen, and log both."""
        seen = step.observe(list(steps))
        if not seen.requests:
            return {}
        self._asked = {i: self._asked.get(i, 0) for i in step.incomplete}
        plans = [batch[request_id].plan for request_id in seen.requests]
        unasked = [
            len(plan.left) - self._asked[i] for i, plan in zip(seen.requests, plans, strict=True)
        ]
        if seen.layer_s:
            quotas = observed_quotas(self._policy, plans[0].blocks_per_layer, seen, unasked)
        else:
            fixed = zip(seen.requests, plans, strict=True)
            quotas = tuple(self._fixed(plan, steps[i]) for i, plan in fixed)
        first = seen.requests[0]
        self._recorder.decide("observe", first, steps[first], 0, seen.values)
        rows = zip(seen.requests, seen.blocks_left, unasked, quotas, strict=True)
        for request_id, left, ours, told in rows:
            self._recorder.decide("quota", request_id, steps[request_id], 0, [left, ours, *told])
            self._asked[request_id] += min(ours, sum(told))
        return dict(zip(seen.requests, quotas, strict=True))
