"""Orders, dominators and natural loops of a graph of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitree.dispatch.native.ssa import Block, SsaLoop


def reverse_postorder(entry: int, successors: Callable[[int], Sequence[int]]) -> list[int]:
    """The nodes reachable from the entry, each in front of those that follow it but for back edges."""
    seen = {entry}
    finished: list[int] = []
    stack = [(entry, iter(successors(entry)))]
    while stack:
        node, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            finished.append(node)
            stack.pop()
        elif following not in seen:
            seen.add(following)
            stack.append((following, iter(successors(following))))
    return finished[::-1]


def set_dominators(blocks: Sequence[Block]) -> None:
    """Finds every block's immediate dominator; the blocks are in reverse postorder and know their place."""
    entry = blocks[0]
    entry.dominator = entry
    changed = True
    while changed:
        changed = False
        for block in blocks[1:]:
            common: Block | None = None
            for predecessor in block.predecessors:
                if predecessor.dominator is not None:
                    common = predecessor if common is None else _common(common, predecessor)
            if common is not block.dominator:
                block.dominator = common
                changed = True
    entry.dominator = None


def _common(one: Block, other: Block) -> Block:
    while one is not other:
        while one.order > other.order:
            assert one.dominator is not None
            one = one.dominator
        while other.order > one.order:
            assert other.dominator is not None
            other = other.dominator
    return one


def find_loops(blocks: Sequence[Block]) -> list[SsaLoop]:
    """The outermost natural loops, with those inside them."""
    loops: list[SsaLoop] = []
    for block in blocks:
        latches = [source for source in block.predecessors if block.dominates(source)]
        if latches:
            loops.append(SsaLoop(block, _body(block, latches)))
    outermost = []
    for number, loop in enumerate(loops):  # in the order of headers: the last one around it is the nearest
        around = [other for other in loops[:number] if loop.header in other.blocks]
        if around:
            loop.parent = around[-1]
            around[-1].children.append(loop)
        else:
            outermost.append(loop)
    return outermost


def _body(header: Block, latches: Sequence[Block]) -> set[Block]:
    body = {header}
    waiting = list(latches)
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting += block.predecessors
    return body
