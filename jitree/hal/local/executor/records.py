"""Declares the records of the command executor, and steps through their tables."""

from __future__ import annotations

from jitree.codegen.record import Atomic, MemoryRecord, place_of
from jitree.hal.command_layout import (
    COMMAND,
    COUNTS,
    DISPATCH,
    ENTRY_POINT,
    EVENT,
    FUNCTIONS,
    HELPER,
    JOB,
    LIST,
    LOG,
    SHARE,
    TEAM,
    WORKGROUP,
)


class Job(MemoryRecord, layout=JOB):
    list: List
    functions: Functions
    team: ThreadTeam
    shares: Share
    failure: Atomic
    log: Log


class Log(MemoryRecord, layout=LOG):
    events: LoggedEvent
    next: Atomic
    users: Atomic
    jobs: Atomic


class LoggedEvent(MemoryRecord, layout=EVENT):
    pass


class List(MemoryRecord, layout=LIST):
    rows: Command


class Command(MemoryRecord, layout=COMMAND):
    entry: KernelEntry


class KernelEntry(MemoryRecord, layout=ENTRY_POINT):
    cost: Atomic


class Functions(MemoryRecord, layout=FUNCTIONS):
    first_look: Atomic


class Share(MemoryRecord, layout=SHARE):
    pass


class Counts(MemoryRecord, layout=COUNTS):
    pass


class KernelDispatch(MemoryRecord, layout=DISPATCH):
    pass


class Workgroup(MemoryRecord, layout=WORKGROUP):
    pass


class ThreadTeam(MemoryRecord, layout=TEAM):
    job: Job
    begin: Command
    functions: Functions
    submitter: Atomic
    limit: Atomic
    claimed: Atomic
    finished: Atomic
    posted: Atomic
    busy: Atomic


class Helper(MemoryRecord, layout=HELPER):
    asleep: Atomic


COMMAND_SIZE = COMMAND.size
SHARE_SIZE = SHARE.size
HELPER_SIZE = HELPER.size


def row_at(commands: List, index: int) -> Command:
    return Command(place_of(commands.rows) + index * COMMAND_SIZE)


def next_row(row: Command) -> Command:
    return Command(place_of(row) + COMMAND_SIZE)


def next_share(share: Share) -> Share:
    return Share(place_of(share) + SHARE_SIZE)


def helper_at(team: ThreadTeam, worker: int) -> Helper:
    return Helper(team.helpers + worker * HELPER_SIZE)
