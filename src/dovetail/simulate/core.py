"""The event loop: workers compute, chunks follow their routes, senders always take the most urgent ready chunk.

Decisions that keep it deterministic: events of one instant run in the order they were made, and every sender
chooses only after all other events of the instant, so that what becomes ready at t competes at t.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.plan.steps import ADD, COPY, DELIVER, FETCH, FINISH, GATE, OFFER, SEND
from dovetail.simulate.network import Network, Path
from dovetail.simulate.paths import GATHER, SPREAD, Move, message_bit
from dovetail.simulate.spans import Raw
from dovetail.simulate.work import Work
from dovetail.timeline import COMPUTE, RECEIVE, UPDATE, WAIT
from dovetail.timeline import SEND as SENDING

_HAPPEN, _CHOOSE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What of the plan and the machines is neither work nor network."""

    iterations: int
    update_at_worker: bool
    update_rate: float  # bytes per second and core
    chunk_bytes: int
    sent_share: float  # of a gradient's bytes that travel to be summed
    returned_share: float  # of the result's
    pace: Sequence[Sequence[float]]  # [worker][iteration]: how many times longer its ops take
    backlog: bool = False  # senders give chunks away before their port is free
    record: bool = True  # note what happens, for spans


class Simulation:
    """One run; `boundaries` and `raw` hold the outcome after `run`."""

    def __init__(self, work: Work, network: Network, rules: Rules) -> None:
        self.work, self.network, self.rules = work, network, rules
        self.now = 0.0
        self._events: list[tuple[float, int, int, Callable[..., None], Any]] = []
        self._count = 0  # of events and messages ever made: what a run costs
        self.raw: list[Raw] | deque[Raw] = [] if rules.record else deque(maxlen=0)
        count, params = len(network.workers), len(work.pieces)
        self.boundaries: list[list[float]] = [[] for _ in range(count)]
        self._iteration = [0] * count
        self._running = count  # workers that have iterations left
        self._at = [0] * count
        self._waits: list[float | None] = [None] * count
        self._have = [[0] * params for _ in range(count)]  # chunks of each parameter that ever arrived
        self._backward_over = [-1] * count  # last iteration whose backward pass is over
        self._made: dict[tuple[int, int, int], int] = {}  # worker, iteration, push -> gradients there
        self._late: list[list[int]] = [[] for _ in range(count)]  # pushes that wait for the end of backward
        self._held: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]  # results the worker does not want yet
        self._state: dict[tuple[int, int, int], list[int]] = {}  # iteration, chunk, node -> place, messages in
        self._fetched: set[tuple[int, int, int]] = set()
        self._pulled: dict[tuple[int, int, int], list[int]] = {}  # iteration, pull, node -> chunks updated
        self._free = [0.0] * network.resources
        self._queues: list[list[tuple[Any, ...]]] = [[] for _ in range(network.resources)]
        self._parked: dict[Any, list[tuple[Any, ...]]] = {}  # connection -> waiting for its previous chunk to land
        self._flying: dict[Any, float] = {}  # connection -> bytes under way
        self._landed_at: dict[Any, float] = {}  # connection -> when its last chunk was through
        self._choosing = [False] * network.resources
        self._paid: dict[tuple[int, ...], float] = {}  # startups already paid -> latency that remains per chunk
        self._cores = [[0.0] * max(1, c) for c in network.cores]

    def run(self) -> None:
        """Until every worker has finished its last iteration."""
        for worker in range(len(self.network.workers)):
            self._post(0.0, self._compute, worker)
        events = self._events
        while events and self._running:
            self.now, _, _, action, argument = heapq.heappop(events)
            action(argument)

    @property
    def cost(self) -> int:
        """Events and messages that the run has made."""
        return self._count

    def _post(self, when: float, action: Callable[..., None], argument: Any, rank: int = _HAPPEN) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, rank, self._count, action, argument))

    # -- computation ---------------------------------------------------------------------------------------------

    def _compute(self, worker: int) -> None:
        """Run the next stretch, or wait for its parameters."""
        iteration, at = self._iteration[worker], self._at[worker]
        stretch = self.work.stretches[at]
        if iteration and stretch.needs:
            have, pieces = self._have[worker], self.work.pieces
            if any(have[p] < iteration * pieces[p] for p in stretch.needs):
                if self._waits[worker] is None:
                    self._waits[worker] = self.now
                return
        since = self._waits[worker]
        if since is not None:
            self.raw.append((worker, WAIT, stretch.name, since, self.now, iteration, 0, -1, None))
            self._waits[worker] = None
        end = self.now + stretch.time * self.rules.pace[worker][iteration]
        self.raw.append((worker, COMPUTE, stretch.name, self.now, end, iteration, 0, -1, None))
        self._post(end, self._computed, worker)

    def _computed(self, worker: int) -> None:
        stretch = self.work.stretches[self._at[worker]]
        for param in stretch.makes:
            self._gradient(worker, param)
        self._at[worker] += 1
        if self._at[worker] < len(self.work.stretches):
            self._compute(worker)
            return
        iteration = self._iteration[worker]
        for param in self.work.unmade:
            self._gradient(worker, param)
        self._backward_over[worker] = iteration
        late, self._late[worker] = self._late[worker], []
        for push in late:
            self._fetch(worker, iteration, push)
        held, self._held[worker] = self._held[worker], []
        for message in held:
            if self.rules.backlog:  # the worker asks for it, and the request queues like everything else
                self._post(self._asked_at(worker), self._enqueue_all, message)
            else:
                self._enqueue(*message)
        for (stage, chunk, node), state in list(self._state.items()) if self.network.gated else ():
            if node == worker and stage == iteration:
                self._advance(stage, chunk, node, state)
        self.boundaries[worker].append(self.now)
        self._iteration[worker] += 1
        self._at[worker] = 0
        if self._iteration[worker] < self.rules.iterations:
            self._compute(worker)
        else:
            self._running -= 1

    def _gradient(self, worker: int, param: int) -> None:
        iteration = self._iteration[worker]
        for push in self.work.feeds[param]:
            key = (worker, iteration, push)
            there = self._made.get(key, 0) + 1
            if there < self.work.pushes[push].params:
                self._made[key] = there
                continue
            self._made.pop(key, None)
            if self.work.pushes[push].late:
                self._late[worker].append(push)
            else:
                self._fetch(worker, iteration, push)

    def _fetch(self, worker: int, iteration: int, push: int) -> None:
        for chunk in self.work.pushes[push].chunks:
            self._fetched.add((iteration, chunk, worker))
            self._touch(iteration, chunk, worker)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _touch(self, iteration: int, chunk: int, node: int, bit: int = 0) -> None:
        state = self._state.get((iteration, chunk, node))
        if state is None:
            state = self._state[iteration, chunk, node] = [0, 0]
        state[1] |= bit
        self._advance(iteration, chunk, node, state)

    def _advance(self, iteration: int, chunk: int, node: int, state: list[int]) -> None:
        moves: tuple[Move, ...] = self.network.moves(chunk)[node]
        while state[0] < len(moves):
            move = moves[state[0]]
            op = move.op
            if op == FETCH:
                if (iteration, chunk, node) not in self._fetched:
                    return
                self._fetched.discard((iteration, chunk, node))
            elif op in (ADD, COPY):
                if state[1] & move.awaits != move.awaits:
                    return
            elif op in (SEND, OFFER):
                for peer in move.peers:
                    self._offer(iteration, chunk, node, peer, move)
            elif op == GATE:
                if node in self.network.workers and self._backward_over[node] < iteration:
                    return
            elif op == FINISH:
                state[0] += 1
                self._finish(iteration, chunk, node)
                return
            elif op == DELIVER:
                self._deliver(iteration, chunk, node)
            state[0] += 1
        del self._state[iteration, chunk, node]

    def _finish(self, iteration: int, chunk: int, node: int) -> None:
        """The sum is complete at its root: update it there, or hand it on as it is."""
        done = self.now
        if not self.rules.update_at_worker:
            done = self._update(iteration, chunk, node)
        self._post(done, self._finished, (iteration, chunk, node))

    def _finished(self, where: tuple[int, int, int]) -> None:
        iteration, chunk, node = where
        pull = self.work.chunks[chunk].pull
        if pull < 0:
            self._advance(iteration, chunk, node, self._state[where])
            return
        # A pull travels as one: its first chunk leaves when its last one at this aggregator is updated.
        ready = self._pulled.setdefault((iteration, pull, node), [])
        ready.append(chunk)
        if len(ready) == self.network.at_root(pull, node):
            del self._pulled[iteration, pull, node]
            for number in sorted(ready):
                self._advance(iteration, number, node, self._state[iteration, number, node])

    def _update(self, iteration: int, chunk: int, node: int) -> float:
        """Book the optimizer's work on the node's first free core; returns when it is done."""
        item, rules = self.work.chunks[chunk], self.rules
        own = item.nbytes / rules.update_rate
        share = self.network.update_share[node]
        alone = own if share == 1.0 else min(own, rules.chunk_bytes / rules.update_rate)
        cores = self._cores[node]
        core = min(range(len(cores)), key=cores.__getitem__)
        begin = max(self.now, cores[core])
        cores[core] = begin + own * share
        end = begin + max(own * share, alone)
        if end > begin:
            name = self.work.pushes[item.push].name
            self.raw.append((node, UPDATE, name, begin, begin + own * share, iteration, item.nbytes, -1, None))
        return end

    def _deliver(self, iteration: int, chunk: int, worker: int) -> None:
        if self.rules.update_at_worker:
            self._post(self._update(iteration, chunk, worker), self._delivered, (chunk, worker))
        else:
            self._delivered((chunk, worker))

    def _delivered(self, where: tuple[int, int]) -> None:
        chunk, worker = where
        self._have[worker][self.work.chunks[chunk].param] += 1
        if self._waits[worker] is not None:
            self._compute(worker)

    # -- messages ------------------------------------------------------------------------------------------------

    def _offer(self, iteration: int, chunk: int, source: int, target: int, move: Move) -> None:
        pull = self.work.chunks[chunk].pull
        if move.phase == SPREAD and pull >= 0 and self.work.pulls[pull].late and target in self.network.workers:
            worker = self.network.worker_of(target)
            if self._backward_over[worker] < iteration:
                self._held[worker].append((iteration, chunk, source, target, move))
                return
        self._enqueue(iteration, chunk, source, target, move)

    def _enqueue(self, iteration: int, chunk: int, source: int, target: int, move: Move) -> None:
        item = self.work.chunks[chunk]
        priority = item.priority if move.phase == GATHER else item.value_priority
        route = self.network.path(chunk, source, target, move.phase)
        self._count += 1
        # Older iterations first: a value someone still waits for holds up every later gradient.
        entry = (iteration, priority, self._count, chunk, source, target, move, route, self.now)
        if self._takes(route):
            heapq.heappush(self._queues[route.port], entry)
            self._ask_to_choose(route.port)
        else:
            heapq.heappush(self._parked.setdefault(route.connection, []), entry)

    def _enqueue_all(self, message: tuple[Any, ...]) -> None:
        self._enqueue(*message)

    def _takes(self, route: Path) -> bool:
        """Whether the connection takes another chunk now."""
        flying = self._flying.get(route.connection, 0.0)
        return flying <= 0.0 or flying < route.room

    def _asked_at(self, worker: int) -> float:
        """When a request that the worker sends now is at its peer."""
        port, startup = self.network.port(worker)
        return max(self.now, self._free[port]) + startup

    def _ask_to_choose(self, port: int) -> None:
        if not self._choosing[port]:
            self._choosing[port] = True
            at = self.now if self.rules.backlog else max(self.now, self._free[port])
            self._post(at, self._choose, port, _CHOOSE)

    def _choose(self, port: int) -> None:
        """The port is free: send the most urgent chunk whose connection is open."""
        self._choosing[port] = False
        if self._free[port] > self.now and not self.rules.backlog:
            self._ask_to_choose(port)
            return
        queue = self._queues[port]
        while queue:
            entry = heapq.heappop(queue)
            route = entry[7]
            if self._takes(route):
                self._send(entry)
                if queue:
                    self._ask_to_choose(port)
                return
            heapq.heappush(self._parked.setdefault(route.connection, []), entry)

    def _send(self, entry: tuple[Any, ...]) -> None:
        iteration, priority, _, chunk, source, target, move, route, since = entry
        item = self.work.chunks[chunk]
        transfer = item.push if move.phase == GATHER or item.pull < 0 else -1 - item.pull
        key = (iteration, transfer, source, move.round)
        hold = 0.0
        delay = self._paid.get(key)
        if delay is None:
            whole = self.work.pulls[item.pull].nbytes if transfer < 0 else self.work.pushes[item.push].nbytes
            hold, delay = self.network.startup(source, move.phase, whole)
            if self.rules.backlog:
                hold, delay = 0.0, hold + delay
            self._paid[key] = delay
        rules = self.rules
        nbytes = item.nbytes * (rules.sent_share if move.phase == GATHER else rules.returned_share)
        start = self.now + hold
        end = start
        begin = start
        for resource, seconds in route.legs:
            begin = max(start, self._free[resource])
            self._free[resource] = begin + nbytes * seconds
            end = max(end, self._free[resource])
        self._flying[route.connection] = self._flying.get(route.connection, 0.0) + nbytes
        lone = route.lone * min(nbytes, self.rules.chunk_bytes)
        name = self.work.pulls[item.pull].name if transfer < 0 else self.work.pushes[item.push].name
        self.raw.append((source, SENDING, name, self.now, end, iteration, item.nbytes, target, priority))
        # A sender that serves several receivers in turn serves them all at once on a real network.
        shared = min(begin, max(since, self._landed_at.get(route.connection, 0.0)))
        self._landed_at[route.connection] = end
        self.raw.append((target, RECEIVE, name, shared, end, iteration, item.nbytes, source, priority))
        self._post(end, self._landed, (route, nbytes))
        arrival = max(end, start + lone) + delay + route.latency
        self._post(arrival, self._arrived, (iteration, chunk, target, message_bit(source, move.phase)))

    def _landed(self, what: tuple[Path, float]) -> None:
        """The connection may carry its next chunk."""
        route, nbytes = what
        self._flying[route.connection] -= nbytes
        waiting = self._parked.get(route.connection)
        if waiting:
            heapq.heappush(self._queues[route.port], heapq.heappop(waiting))
        if self._queues[route.port]:
            self._ask_to_choose(route.port)

    def _arrived(self, message: tuple[int, int, int, int]) -> None:
        self._touch(*message)
