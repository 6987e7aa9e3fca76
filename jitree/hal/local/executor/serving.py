"""What the worker threads of a team do until they are dismissed. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.processor import flush_denormals, pause, restore_denormals, ticks
from jitree.codegen.record import atomic_load, atomic_replace
from jitree.hal.command_layout import MASK_SIZE, MOST_LOOKS, POSTED_STOP, POSTING
from jitree.hal.local.executor.chunks import claim_chunks
from jitree.hal.local.executor.inviting import is_dismissed, is_invited, rouse, sleep, wake
from jitree.hal.local.executor.records import ThreadTeam, helper_at


def serve(team: ThreadTeam, worker: int) -> None:
    """A worker thread, numbered from 1: helps with what it is invited to, sleeps when there has been nothing
    for a while."""
    avoided = -1
    seen = 0
    while True:
        posted = spin(team, worker, seen)
        if is_dismissed(posted):
            return
        if posted == seen:
            sleep(team, worker, seen)
        else:
            seen = posted
            rouse(team, worker, posted & (POSTING - 1))
            avoided = settle(team, worker, avoided)
            mode = flush_denormals()
            claim_chunks(team, worker)
            restore_denormals(mode)


def dismiss(team: ThreadTeam) -> None:
    """Lets the workers end."""
    posted = atomic_load(team.posted)
    while not atomic_replace(team.posted, posted, posted | POSTED_STOP):
        posted = atomic_load(team.posted)
    for worker in range(1, team.workers + 1):
        wake(team, helper_at(team, worker))


def spin(team: ThreadTeam, worker: int, seen: int) -> int:
    """Looks until the worker is invited, is to end, or patience ends. What is posted; ``seen`` if that is
    nothing new for this worker."""
    patience = team.spin_ticks
    since = ticks()
    for _ in range(MOST_LOOKS):
        posted = atomic_load(team.posted)
        if posted != seen and (is_invited(posted, worker) or is_dismissed(posted)):
            return posted
        if ticks() - since >= patience:
            return seen
        pause()
    return seen


def settle(team: ThreadTeam, worker: int, avoided: int) -> int:
    """Sees to it that a helper is not on the submitting thread's processor, where it would wait for
    milliseconds. One that may be on no other goes where the first thread of the team may be. The processor
    that it avoids from now on; -1: none yet."""
    submitter = atomic_load(team.submitter)
    if submitter == avoided or submitter >= 8 * MASK_SIZE:
        return avoided
    mask = stack(MASK_SIZE)
    allowed = team.masks + worker * MASK_SIZE
    others = 0
    for place in range(0, MASK_SIZE, 8):
        word = load64(allowed + place)
        if place == submitter >> 6 << 3:
            word &= ~(1 << (submitter & 63))
        store64(mask + place, word)
        others |= word
    if others == 0:
        mask = team.masks
    call(team.functions.sched_setaffinity, 0, MASK_SIZE, mask)
    return submitter
