"""A small model in the shape of Llama: its sizes, its weights, and what it computes, in numpy."""

from __future__ import annotations

import math

import numpy as np

LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,!?"
BATCH = 4
"""Requests that one step takes a token of."""
PAGE = 8
"""Tokens in a page of the cache."""
PAGES = 17
"""The first belongs to no request: what takes part in a step without being one writes there."""
LENGTH = 32
"""Tokens of a request at most."""
LAYERS, HEADS, GROUPS, SIZE = 2, 4, 2, 8
WIDTH, HIDDEN, LETTER_COUNT = HEADS * SIZE, 64, len(LETTERS)
EPSILON = 1e-5


def shapes() -> dict[str, tuple[int, ...]]:
    """Of the weights, in the order in which the program takes them."""
    found: dict[str, tuple[int, ...]] = {"embedding": (LETTER_COUNT, WIDTH)}
    for layer in range(LAYERS):
        found |= {
            f"norm_{layer}": (WIDTH,), f"q_{layer}": (WIDTH, WIDTH), f"k_{layer}": (WIDTH, GROUPS * SIZE),
            f"v_{layer}": (WIDTH, GROUPS * SIZE), f"o_{layer}": (WIDTH, WIDTH),
            f"hidden_norm_{layer}": (WIDTH,), f"gate_{layer}": (WIDTH, HIDDEN),
            f"up_{layer}": (WIDTH, HIDDEN), f"down_{layer}": (HIDDEN, WIDTH),
        }  # fmt: skip
    return found | {"last_norm": (WIDTH,), "head": (WIDTH, LETTER_COUNT)}


def weights(seed: int = 1) -> dict[str, np.ndarray]:
    """They are not trained: what the model writes is made of letters and means nothing."""
    random = np.random.default_rng(seed)
    return {
        name: (
            random.normal(0, 2 / math.sqrt(shape[0]), shape) if len(shape) > 1 else 1 + random.random(shape)
        ).astype(np.float32)
        for name, shape in shapes().items()
    }


def encode(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def reference(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The scores of each letter after the tokens, computed at once and in binary64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = w["embedding"][tokens]
    for layer in range(LAYERS):
        y = _norm(x, w[f"norm_{layer}"])
        q = _turn((y @ w[f"q_{layer}"]).reshape(len(x), HEADS, SIZE))
        k = _turn((y @ w[f"k_{layer}"]).reshape(len(x), GROUPS, SIZE)).repeat(HEADS // GROUPS, 1)
        v = (y @ w[f"v_{layer}"]).reshape(len(x), GROUPS, SIZE).repeat(HEADS // GROUPS, 1)
        scores = np.einsum("thi,shi->hts", q, k) / math.sqrt(SIZE)
        scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        seen = np.einsum("hts,shi->thi", shares / shares.sum(-1, keepdims=True), v)
        x = x + seen.reshape(len(x), WIDTH) @ w[f"o_{layer}"]
        y = _norm(x, w[f"hidden_norm_{layer}"])
        gate = y @ w[f"gate_{layer}"]
        x = x + gate / (1 + np.exp(-gate)) * (y @ w[f"up_{layer}"]) @ w[f"down_{layer}"]
    return _norm(x[-1], w["last_norm"]) @ w["head"]


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def _turn(x: np.ndarray) -> np.ndarray:
    """Rotary positions."""
    half = SIZE // 2
    angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate(
        [x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1
    )
