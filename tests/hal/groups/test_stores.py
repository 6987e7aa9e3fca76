"""Members that find each other by a store of keys."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jitree.base.cancel_scopes import deadline
from jitree.errors import AlreadyExistsError, DeadlineExceededError, InvalidArgumentError, UnavailableError
from jitree.hal.groups.rendezvous import FolderStore, StoreProvider


def exchanged(stores: list[Any]) -> list[list[bytes]]:
    """What each member gets in two exchanges."""

    def member(rank: int) -> list[bytes]:
        provider = StoreProvider(stores[rank], rank, len(stores))
        assert provider.query_default_rank_and_count() == (rank, len(stores))
        return [provider.exchange_default_id(b"%d of %d" % (number, rank)) for number in range(2)]

    with ThreadPoolExecutor(len(stores)) as threads:
        return list(threads.map(member, range(len(stores))))


def test_a_folder(tmp_path: Path) -> None:
    stores = [FolderStore(tmp_path / "job", 60) for _ in range(3)]
    assert exchanged(stores) == [[b"0 of 0", b"1 of 0"]] * 3
    with pytest.raises(AlreadyExistsError, match="take a new folder for each job"):
        StoreProvider(stores[0], 0, 3).exchange_default_id(b"")
    assert not list(tmp_path.glob("job/*.*"))


def test_members_that_do_not_come(tmp_path: Path) -> None:
    """All others raise: also those that have the id when a third one is missing."""
    providers = [StoreProvider(FolderStore(tmp_path, 0.2), rank, 3) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(provider.exchange_default_id, b"") for provider in providers]
        for member in made:
            with pytest.raises(DeadlineExceededError, match="exchanging the id of a channel"):
                member.result(60)
    with pytest.raises(DeadlineExceededError, match="member 0 has not given it"):
        StoreProvider(FolderStore(tmp_path / "other", 0.01), 1, 2).exchange_default_id(b"")
    with deadline(0.1), pytest.raises(DeadlineExceededError, match="was not done within"):
        StoreProvider(FolderStore(tmp_path / "other", 60), 1, 2).exchange_default_id(b"")


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_what_is_no_time(tmp_path: Path, timeout: float) -> None:
    """With NaN a member would wait for ever."""
    with pytest.raises(InvalidArgumentError, match="timeout"):
        FolderStore(tmp_path, timeout)


def test_stores_of_torch() -> None:
    torch = pytest.importorskip("torch.distributed")
    seconds = datetime.timedelta(seconds=60)
    first = torch.TCPStore("127.0.0.1", 0, 2, True, seconds, wait_for_workers=False)
    second = torch.TCPStore("127.0.0.1", first.port, 2, False, seconds, wait_for_workers=False)
    assert exchanged([first, second]) == [[b"0 of 0", b"1 of 0"]] * 2
    second.set_timeout(datetime.timedelta(milliseconds=10))
    with pytest.raises(UnavailableError, match="member 0 has not given it"):
        StoreProvider(second, 1, 2).exchange_default_id(b"")


class Counting:
    """A store as those of torch are: what is set again is replaced."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._counts: Counter[str] = Counter()

    def set(self, key: str, value: bytes, /) -> None:
        self._kept[key] = value

    def get(self, key: str, /) -> bytes:
        while key not in self._kept:
            time.sleep(0.001)
        return self._kept[key]

    def add(self, key: str, amount: int, /) -> int:
        self._counts[key] += amount
        return self._counts[key]


def test_several_providers_share_a_store_that_counts() -> None:
    """Such as those of two sessions: the second got the id of the first one's group."""
    stores = [Counting()] * 2
    for _ in range(2):
        assert exchanged(stores) == [[b"0 of 0", b"1 of 0"]] * 2
    ahead, second = StoreProvider(stores[0], 1, 2), StoreProvider(stores[0], 0, 2)
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(ahead.exchange_default_id, b"")
        assert second.exchange_default_id(b"new") == found.result(60) == b"new"
