from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from jitree.hal.buffer import Buffer, BufferView
from jitree.regs.handles import HandleTable
from jitree.regs.layout import ENTRY, EXTENSION_SIZE
from tests.modules.helpers import Hal

_take_over = HandleTable.take_over


@pytest.fixture(params=["local-sync", "local-task"])
def hal(request: pytest.FixtureRequest) -> Iterator[Hal]:
    hal = Hal(request.param)
    yield hal
    hal.session.close()


def _published(table: HandleTable, address: int, obj: Buffer | BufferView) -> tuple[list[int], list[int]]:
    """The words of an entry, and what it says of dimensions and access."""
    first, rank = (address - table.base) >> 3, len(obj.shape) if isinstance(obj, BufferView) else 0
    extension = (first + (table.extension >> 3), EXTENSION_SIZE // 8)
    entry = table.i64[first : first + ENTRY.size // 8].tolist()
    known = table.i64[extension[0] : extension[0] + rank].tolist()
    return entry, [*known, table.i64[sum(extension) - 1]] if rank else known


@pytest.fixture(autouse=True, scope="module")
def entries_are_as_objects_publish_them() -> Iterator[None]:
    """What Python takes over from machine code is not written again: it is there already."""

    def checked(table: HandleTable, address: int, obj: object, kept: Sequence[int] = ()) -> None:
        _take_over(table, address, obj, kept)
        if isinstance(obj, (Buffer, BufferView)):
            found = _published(table, address, obj)
            obj.fill_entry(table, address)
            assert found == _published(table, address, obj)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(HandleTable, "take_over", checked)
        yield
