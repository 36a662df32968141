"""The event loop against an independent model of the same rules in SimPy: one worker, one hub, full-duplex link."""

from __future__ import annotations

import random

import pytest
import simpy
from chains import chain, layerwise

from dovetail.network.model import Cluster, Link
from dovetail.simulate.run import simulate

RATE, UPDATE_RATE, CHUNK, ITERATIONS = 1e6, 5e6, 1000, 4


def with_simpy(sizes, forward, backward, urgent):
    """Ends of the iterations."""
    env = simpy.Environment()
    up, down = simpy.PriorityResource(env), simpy.PriorityResource(env)
    core = simpy.Resource(env)
    arrived = {(i, p): env.event() for i in range(ITERATIONS) for p in range(len(sizes))}
    left = {(i, p): -(-n // CHUNK) for i in range(ITERATIONS) for p, n in enumerate(sizes)}
    ends = []

    def chunk(iteration, param, nbytes):
        level = param if urgent else 0
        with up.request(priority=level) as turn:
            yield turn
            yield env.timeout(nbytes / RATE)
        with core.request() as turn:
            yield turn
            yield env.timeout(nbytes / UPDATE_RATE)
        with down.request(priority=level) as turn:
            yield turn
            yield env.timeout(nbytes / RATE)
        left[iteration, param] -= 1
        if left[iteration, param] == 0:
            arrived[iteration, param].succeed()

    def worker():
        for iteration in range(ITERATIONS):
            for param, time in enumerate(forward):
                if iteration:
                    yield arrived[iteration - 1, param]
                yield env.timeout(time)
            for param in reversed(range(len(sizes))):
                yield env.timeout(backward[param])
                for start in range(0, sizes[param], CHUNK):
                    env.process(chunk(iteration, param, min(CHUNK, sizes[param] - start)))
            ends.append(env.now)

    env.process(worker())
    env.run()
    return ends


@pytest.mark.parametrize("urgent", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_same_ends_of_iterations(seed, urgent):
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 40_000) for _ in range(8)]
    scale = chance.choice([0.3, 1.0, 3.0]) * sum(sizes) / RATE / 24
    forward = [scale * chance.uniform(0.5, 1.5) for _ in sizes]
    backward = [2 * scale * chance.uniform(0.5, 1.5) for _ in sizes]
    profile = chain(sizes, forward=forward, backward=backward)
    plan = layerwise(profile, urgent=urgent, aggregation="hub", update="hub", chunk_bytes=CHUNK)
    cluster = Cluster.uniform(workers=1, link=Link(startup=0.0, bandwidth=RATE), hubs=1)
    timeline = simulate(profile, plan, cluster, iterations=ITERATIONS - 1, hub_update_rate=UPDATE_RATE)
    assert timeline.boundaries["worker 0"] == pytest.approx(with_simpy(sizes, forward, backward, urgent), rel=1e-9)
