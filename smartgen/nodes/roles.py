"""The engine's programs, made for an experiment: what every world wires to nodes and channels."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, TypeVar

from smartgen.engine import DecodeRole, PrefillRole, Router
from smartgen.engine.protocols import Channel, Event, Scope
from smartgen.experiment import Experiment
from smartgen.kv import PrefixCache
from smartgen.nodes.channel import TimedRuntime
from smartgen.nodes.timed_decode import TimedDecodeNode
from smartgen.nodes.timed_prefill import TimedPrefillNode, WaitingRuntime
from smartgen.workload import Request, arrivals_of, departures_of

T = TypeVar("T")


def make_router(experiment: Experiment) -> Router:
    """The front of the experiment's cluster."""
    cluster = experiment.cluster
    return Router(
        cluster.routing,
        cluster.prefill_nodes,
        cluster.decode_nodes,
        partial(PrefixCache, cluster.prefill_cache_tokens),
        partial(PrefixCache, cluster.decode_cache_tokens),
    )


def make_decode_role(
    runtime: WaitingRuntime,
    experiment: Experiment,
    node: TimedDecodeNode[Any],
    channels: Sequence[Channel],
    router: Router,
) -> DecodeRole:
    """The program of a decoding node; channels lead to all prefill nodes."""
    return DecodeRole(
        runtime,
        node,
        channels,
        router,
        experiment.policy,
        experiment.planner().plans_of,
        experiment.cost.looks_ahead,
        experiment.geometry.num_layers,
        experiment.workload.closed,
        experiment.cluster.decode_batch,
        node.recorder,
    )


def make_prefill_role(
    runtime: WaitingRuntime,
    experiment: Experiment,
    node: TimedPrefillNode,
    channels: Sequence[Channel],
) -> PrefillRole:
    """The program of a prefill node; channels lead to all decoding nodes."""
    return PrefillRole(
        runtime, node, channels, experiment.policy, experiment.planner().plan_of, node.recorder
    )


def warm_up(experiment: Experiment) -> None:
    """Have computed what is computed once and kept, before anybody's time counts."""
    request = experiment.requests[0]
    experiment.planner().plans_of([request])
    experiment.draw(request.request_id, request.prompt_tokens).selected_at(0)


async def serve(
    runtime: TimedRuntime,
    requests: Sequence[Request],
    router: Router,
    roles: Sequence[DecodeRole],
    serving: Scope,
) -> None:
    """Have requests come and clients leave at their times, until all decoding roles are done."""
    router.serve(roles)
    fed, decoding = runtime.scope(), runtime.scope()
    fed.spawn(router.arrive(at_their_times(runtime, arrivals_of(requests))))
    fed.spawn(router.depart(at_their_times(runtime, departures_of(requests))))
    serving.spawn(joined(fed))
    for role in roles:
        decoding.spawn(role.run())
    await decoding.join()
    fed.cancel()


async def at_their_times(
    runtime: TimedRuntime, rows: Sequence[tuple[float, T]]
) -> AsyncIterator[T]:
    """What comes from outside, each at its time."""
    for at_s, what in rows:
        come = runtime.event()
        runtime.call_last(at_s, partial(_set, come))
        await come.wait()
        yield what


async def joined(scope: Scope) -> None:
    """Wait for a scope; its first failure is raised."""
    await scope.join()


def _set(event: Event, _: float) -> None:
    event.set()
