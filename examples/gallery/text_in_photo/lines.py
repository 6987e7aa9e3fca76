"""From the map in which the model marks lines of text to the corners of these lines."""

from __future__ import annotations

import numpy as np

LIKELY = 0.3
"""Of a pixel that is text."""
STEP = 2
"""Pixels between those of the map that are looked at."""
GROWTH = 1.6
"""The model marks the middle of lines: how far the edges are from it, times circumference over area."""


def parts_of(text: np.ndarray) -> np.ndarray:
    """A number for each pixel of text, the same where pixels touch each other; 0 elsewhere."""
    parts, before = np.where(text, 1 + np.arange(text.size).reshape(text.shape), 0), np.zeros(())
    while not np.array_equal(parts, before):  # each pixel takes the largest number around it
        before = parts
        around = np.lib.stride_tricks.sliding_window_view(np.pad(parts, 1), (3, 3))
        parts = np.where(text, around.max((2, 3)), 0)
    return parts


def corners_of(points: np.ndarray) -> np.ndarray | None:
    """Upper left, lower left, lower right, upper right of a line, which may lie askew; None for a speck."""
    centre = points.mean(0)
    along = np.linalg.svd(points - centre, full_matrices=False)[2][0]
    axes = np.array([along, [-along[1], along[0]]]) * np.sign(along[0])
    places = (points - centre) @ axes.T
    low, high = places.min(0), places.max(0)
    if min(high - low) < 2 * STEP:
        return None
    margin = GROWTH * np.prod(high - low) / (2 * (high - low).sum())
    (left, top), (right, bottom) = low - margin, high + margin
    return centre + np.array([[left, top], [left, bottom], [right, bottom], [right, top]]) @ axes


def lines_of(likely: np.ndarray) -> list[np.ndarray]:
    """The corners of each line in a map of probabilities, from the top of the photograph down."""
    parts = parts_of(likely[::STEP, ::STEP] > LIKELY)
    found = (corners_of(STEP * np.argwhere(parts == part)[:, ::-1]) for part in np.unique(parts[parts > 0]))
    return sorted((corners for corners in found if corners is not None), key=lambda corners: corners[0, 1])
