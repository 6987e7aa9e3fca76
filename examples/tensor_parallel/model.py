"""Sizes, weights and shards of the block, and the block in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry

TOKENS, SIZE, HEADS, HIDDEN, RANKS = 8, 32, 4, 32, 2
EPSILON = 1e-5
SPLIT = {
    "attn_norm": None, "attn_q": 0, "attn_k": 0, "attn_v": 0, "attn_output": 1,
    "ffn_norm": None, "ffn_gate": 0, "ffn_up": 0, "ffn_down": 1,
}  # fmt: skip
"""The axis that the ranks share out, of a weight (outputs, inputs); scales are whole at each."""
NAMES = tuple(SPLIT)


def weights() -> dict[str, Any]:
    generator = np.random.default_rng(7)
    return {
        name: generator.standard_normal(SIZE if axis is None else (SIZE, SIZE), np.float32) / SIZE**0.5
        for name, axis in SPLIT.items()
    }


def shard(name: str, weight: Any, rank: int) -> Any:
    axis = SPLIT[name]
    return weight if axis is None else np.split(weight, RANKS, axis)[rank]


def shard_shapes() -> dict[str, tuple[int, ...]]:
    return {name: shard(name, weight, 0).shape for name, weight in weights().items()}


def archive(folder: Path, rank: int) -> Path:
    return folder / f"block.rank{rank}.irpa"


def save(folder: Path) -> None:
    """An archive for each rank, with names as sharktank gives them."""
    for rank in range(RANKS):
        entries = [
            array_entry(f"{name}.weight.shard.{rank}", np.ascontiguousarray(shard(name, weight, rank)))
            for name, weight in weights().items()
        ]
        write(archive(folder, rank), plan(entries))


def reference(x: Any) -> Any:
    """The whole block, in f64."""
    w = {name: weight.astype(np.float64) for name, weight in weights().items()}
    y = norm(x.astype(np.float64), w["attn_norm"])
    q, k, v = (
        (y @ w[name].T).reshape(TOKENS, HEADS, -1).swapaxes(0, 1) for name in ("attn_q", "attn_k", "attn_v")
    )
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones((TOKENS, TOKENS), bool), 1)] = -np.inf
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    x = x + (chances @ v).swapaxes(0, 1).reshape(TOKENS, SIZE) @ w["attn_output"].T
    y = norm(x, w["ffn_norm"])
    gate = y @ w["ffn_gate"].T
    return x + (gate / (1 + np.exp(-gate)) * (y @ w["ffn_up"].T)) @ w["ffn_down"].T


def norm(x: Any, scale: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * scale
