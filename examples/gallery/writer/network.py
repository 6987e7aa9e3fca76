"""The network of textgenrnn: two LSTM layers over the last forty letters, and attention to all they make.

It is written once for numpy and JAX (``xp`` and ``scan``). Weights are an argument, so the modules have none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CELLS = 128
Scan = Callable[[Callable[[Any, Any], tuple[Any, Any]], Any, Any], tuple[Any, Any]]


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Of Keras' file, where the layers have the form of CuDNN: turned kernels, and two biases that add up."""
    import h5py

    with h5py.File(path) as file:
        found = {
            "embedding": file["embedding/embedding/embeddings:0"][()],
            "attention": file["attention/attention/attention_W:0"][()],
            "output": file["output/output/kernel:0"][()],
            "output_bias": file["output/output/bias:0"][()],
        }
        for layer in ("rnn_1", "rnn_2"):
            group = file[f"{layer}/{layer}"]
            found[f"{layer}_kernel"] = turned(group["kernel:0"][()])
            found[f"{layer}_recurrent"] = turned(group["recurrent_kernel:0"][()])
            found[f"{layer}_bias"] = group["bias:0"][()].reshape(2, -1).sum(0)
    return found


def turned(kernel: np.ndarray) -> np.ndarray:
    """The part of each of the four gates is in the file row by row of the other side."""
    return np.hstack([part.reshape(part.shape[::-1]).T for part in np.hsplit(kernel, 4)])


def loop(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any) -> tuple[Any, Any]:
    """As ``jax.lax.scan``."""
    outputs = []
    for one in inputs:
        state, output = step(state, one)
        outputs.append(output)
    return state, np.stack(outputs)


def lstm(xp: Any, scan: Scan, inputs: Any, weights: dict[str, Any], layer: str) -> Any:
    """What the cells put out at each step."""

    def step(state: Any, gates: Any) -> tuple[Any, Any]:
        hidden, cell = state
        gates = gates + hidden @ weights[f"{layer}_recurrent"]
        into, forget, new, out = (gates[CELLS * n : CELLS * (n + 1)] for n in range(4))
        cell = sigmoid(xp, forget) * cell + sigmoid(xp, into) * xp.tanh(new)
        hidden = sigmoid(xp, out) * xp.tanh(cell)
        return (hidden, cell), hidden

    start = xp.zeros(CELLS, xp.float32)
    return scan(step, (start, start), inputs @ weights[f"{layer}_kernel"] + weights[f"{layer}_bias"])[1]


def sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


def next_letter(xp: Any, scan: Scan, weights: dict[str, Any], letters: Any) -> Any:
    """Probabilities of what follows forty letters."""
    embedded = weights["embedding"][letters]
    first = lstm(xp, scan, embedded, weights, "rnn_1")
    second = lstm(xp, scan, first, weights, "rnn_2")
    seen = xp.concatenate([embedded, first, second], axis=-1)
    attention = xp.exp((logits := seen @ weights["attention"]) - logits.max())
    average = (seen * attention / attention.sum()).sum(0)
    scores = average @ weights["output"] + weights["output_bias"]
    likely = xp.exp(scores - scores.max())
    return likely / likely.sum()
