"""Calls that are made again from recordings: what a device offers for that to :mod:`jitree.api.replay`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from jitree.hal.recording import CallRecording


class Replay(Protocol):
    """A recorded call, ready to be made again."""

    @property
    def dropped(self) -> bool:
        """Whether it can no longer be made."""


class Replays(Protocol):
    """The recordings of one device. May be used from any thread."""

    @property
    def are_usable(self) -> bool:
        """Whether calls may be recorded and repeated now."""

    @property
    def submitted(self) -> int:
        """Submissions of the device so far."""

    def pays(self, submissions: int) -> bool:
        """Whether a call that makes so many takes less time from a recording."""

    def follows(self, fence: Fence) -> bool:
        """Whether all that is submitted from now on runs after what the fence stands for."""

    def record(self, arguments: Sequence[Buffer]) -> AbstractContextManager[CallRecording | None]:
        """Records what this thread does on the device; None while another recording is made."""

    def make(self, recording: CallRecording, results: Sequence[int]) -> Replay | None:
        """What makes a recorded call again; ``results`` are the numbers of the allocations that its caller
        gets. None when it cannot be repeated."""

    def locate(self, arguments: Sequence[Buffer]) -> Any:
        """Where the device finds arguments. PERMISSION_DENIED for memory that it cannot reach."""

    def run(self, replay: Any, arguments: Any) -> tuple[list[Buffer], Fence] | None:
        """The buffers of the results and what is reached when they are computed; None when the program must
        be run."""
