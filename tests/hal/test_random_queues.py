"""Random queue operations, submitted and waited for by several threads, do what they do one after the
other."""

from __future__ import annotations

import random
import threading
from typing import NamedTuple

import numpy as np
import pytest

from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.fence import Fence
from jitree.hal.local import task
from tests.hal.helpers import TIMEOUT, allocate

BUFFERS = 6
WORDS = 8
OPERATIONS = 150
THREADS = 3


class Step(NamedTuple):
    """Fills the target with ``value``, or copies a source to it."""

    target: int
    source: int | None
    value: int


def make_steps(generator: random.Random) -> list[Step]:
    steps = []
    for number in range(1, OPERATIONS + 1):
        target = generator.randrange(BUFFERS)
        source = generator.choice([None, *(other for other in range(BUFFERS) if other != target)])
        steps.append(Step(target, source, number))
    return steps


def expected_contents(steps: list[Step]) -> list[int]:
    values = [0] * BUFFERS
    for step in steps:
        values[step.target] = step.value if step.source is None else values[step.source]
    return values


def waits_of(steps: list[Step]) -> list[set[int]]:
    """Per step the earlier ones that it must not overtake: the last to write what it reads or writes, and the
    readers since of what it writes."""
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    waits: list[set[int]] = []
    for number, step in enumerate(steps):
        before = set(readers.get(step.target, ()))
        before |= {writer[place] for place in (step.target, step.source) if place in writer}
        waits.append(before)
        if step.source is not None:
            readers.setdefault(step.source, set()).add(number)
        writer[step.target] = number
        readers[step.target] = set()
    return waits


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("everything_queued", [True, False])
def test_random_operations(
    registry: DriverRegistry, monkeypatch: pytest.MonkeyPatch, seed: int, everything_queued: bool
) -> None:
    if everything_queued:
        monkeypatch.setattr(task, "INLINE_COST", -1)
        monkeypatch.setattr(task, "INLINE_DEFERRED_COST", -1)
    generator = random.Random(seed)
    steps = make_steps(generator)
    waits = waits_of(steps)
    with registry.create_device(f"local-task://?threads={generator.randint(1, 4)}") as device:
        buffers = [allocate(device, bytes(4 * WORDS)) for _ in range(BUFFERS)]
        done = [Fence.create(device) for _ in steps]
        failures: list[BaseException] = []

        def work(numbers: list[int], waited: list[int]) -> None:
            try:
                for number in numbers:
                    submit(
                        device,
                        buffers,
                        steps[number],
                        Fence.join(done[i] for i in waits[number]),
                        done[number],
                    )
                for number in waited:
                    done[number].wait(None if number % 2 else TIMEOUT)
            except BaseException as error:
                failures.append(error)

        order = list(range(OPERATIONS))
        generator.shuffle(order)
        threads = [
            threading.Thread(
                target=work, args=(order[part::THREADS], generator.sample(range(OPERATIONS), 40)), daemon=True
            )
            for part in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for count in generator.choices(range(1, 5), k=5):
            device.set_threads(count)
        for thread in threads:
            thread.join(TIMEOUT)
        assert not failures and not any(thread.is_alive() for thread in threads)
        for fence in done:
            fence.wait(TIMEOUT)
        contents = [buffer.host_array().view(np.uint32).tolist() for buffer in buffers]
    assert contents == [[value] * WORDS for value in expected_contents(steps)]


def submit(device: Device, buffers: list[Buffer], step: Step, wait: Fence | None, signal: Fence) -> None:
    target = buffers[step.target]
    if step.source is None:
        device.queue_fill(-1, wait, signal, target, 0, 4 * WORDS, step.value, 4)
    else:
        device.queue_copy(-1, wait, signal, buffers[step.source], 0, target, 0, 4 * WORDS)
