"""In front of the decoding nodes: chooses the nodes of every request as it arrives."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from smartgen.kv import PrefixCache
from smartgen.policy import choose
from smartgen.workload import Request

Arrivals: TypeAlias = AsyncIterator[Sequence[Request]]
"""Requests that arrive together; a closed batch's K_r is computed for all of them."""

Departures: TypeAlias = AsyncIterator[int]
"""Numbers of requests whose clients leave."""


class Decoding(Protocol):
    """A decoding node's role, as the router sees it."""

    def accept(self, requests: Sequence[Request], peers: Sequence[int]) -> None:
        """Serve requests that arrive together; peers[i] is the prefill node of requests[i]."""

    def leave(self, request_id: int) -> None:
        """A request's client leaves."""

    def no_more(self) -> None:
        """Nothing more will arrive."""


@dataclass(slots=True)
class _Placed:
    """Where a request went, and what it adds to its nodes' loads."""

    request: Request
    peer: int
    node: int
    prefilling: bool = True


class Router:
    """Knows what every node has still to do, since it sees requests come, move on and go.

    Loads are tokens: those to be computed at prefill nodes, prompts and outputs at decoding nodes.
    It also knows which prefixes each node holds, for requests that name theirs.
    """

    def __init__(
        self,
        rule: str,
        num_prefill_nodes: int,
        num_decode_nodes: int,
        make_prefill_cache: Callable[[], PrefixCache],
        make_decode_cache: Callable[[], PrefixCache],
    ) -> None:
        self._rule = rule
        self._prefill_loads = [0] * num_prefill_nodes
        self._decode_loads = [0] * num_decode_nodes
        self._prefill_caches = [make_prefill_cache() for _ in range(num_prefill_nodes)]
        self._decode_caches = [make_decode_cache() for _ in range(num_decode_nodes)]
        self._lost: set[int] = set()
        self._placed: dict[int, _Placed] = {}
        self._turn = 0
        self.num_over = 0
        self._roles: Sequence[Decoding] = ()

    def serve(self, roles: Sequence[Decoding]) -> None:
        """Hand requests to these roles, in the order of their nodes."""
        self._roles = roles

    async def arrive(self, arrivals: Arrivals) -> None:
        """Hand out all that arrives."""
        async for requests in arrivals:
            self._place(requests)
        for role in self._roles:
            role.no_more()

    async def depart(self, departures: Departures) -> None:
        """Pass on which clients leave; if a request is over already, nobody cares."""
        async for request_id in departures:
            placed = self._placed.get(request_id)
            if placed is not None:
                self._roles[placed.node].leave(request_id)

    def _place(self, requests: Sequence[Request]) -> None:
        groups: dict[int, tuple[list[Request], list[int]]] = {}
        for request in requests:
            peer = choose(self._rule, self._turn, self._prefill_loads, self._lost)
            node = choose(self._rule, self._turn, self._decode_loads)
            self._turn += 1
            served = self._with_hits(request, peer, node)
            self._placed[request.request_id] = _Placed(served, peer, node)
            self._prefill_loads[peer] += served.prompt_tokens - served.cached_tokens
            self._decode_loads[node] += served.prompt_tokens + served.output_tokens
            group = groups.setdefault(node, ([], []))
            group[0].append(served)
            group[1].append(peer)
        for node, (group_requests, peers) in groups.items():
            self._roles[node].accept(group_requests, peers)

    def _with_hits(self, request: Request, peer: int, node: int) -> Request:
        """The request with what its nodes hold of its prefix; one token at least is computed."""
        if not request.prefix:
            return request
        told = (request.prefix, request.prefix_tokens)
        cached = self._prefill_caches[peer].hit_tokens(*told, request.prompt_tokens - 1)
        held = self._decode_caches[node].hit_tokens(*told, request.prompt_tokens)
        return replace(request, cached_tokens=cached, held_tokens=held)

    # -- what the roles say

    def handed_over(self, request_id: int) -> None:
        """A request's prefill is done."""
        placed = self._placed[request_id]
        self._leave_prefill(placed)
        request = placed.request
        self._prefill_caches[placed.peer].add(
            request.prefix, request.prefix_tokens, request.prompt_tokens
        )

    def over(self, request_id: int, whole: bool) -> None:
        """A request is at its end; whole: all of its prompt's cache is at the decoding node."""
        placed = self._placed.pop(request_id)
        self.num_over += 1
        self._leave_prefill(placed)
        request = placed.request
        self._decode_loads[placed.node] -= request.prompt_tokens + request.output_tokens
        if whole:
            self._decode_caches[placed.node].add(
                request.prefix, request.prefix_tokens, request.prompt_tokens
            )

    def lost(self, peer: int) -> None:
        """A prefill node is gone, and with it what it held."""
        self._lost.add(peer)

    def _leave_prefill(self, placed: _Placed) -> None:
        if placed.prefilling:
            placed.prefilling = False
            request = placed.request
            self._prefill_loads[placed.peer] -= request.prompt_tokens - request.cached_tokens
