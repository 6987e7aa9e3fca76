"""A small convolutional network in numpy: forward, gradients and Adam, nothing else.

Tensors are NHWC. The layers: two times (3x3 convolution, bias, ReLU, 2x2 maximum), then one matrix product.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float32]
Parameters = dict[str, Array]

CHANNELS = (1, 8, 16)
CLASSES = 10
_STEP, _DECAY1, _DECAY2, _EPSILON = 3e-3, 0.9, 0.999, 1e-8


def initial_parameters(rng: np.random.Generator) -> Parameters:
    """He initialisation; biases zero."""
    parameters: Parameters = {}
    for layer, (inputs, outputs) in enumerate(pairwise(CHANNELS), start=1):
        scale = np.sqrt(2 / (9 * inputs))
        parameters[f"filter{layer}"] = (rng.standard_normal((3, 3, inputs, outputs)) * scale).astype("f4")
        parameters[f"bias{layer}"] = np.zeros(outputs, "f4")
    features = 2 * 2 * CHANNELS[-1]
    parameters["dense"] = (rng.standard_normal((features, CLASSES)) * np.sqrt(2 / features)).astype("f4")
    parameters["bias3"] = np.zeros(CLASSES, "f4")
    return parameters


def _patches(x: Array) -> Array:
    """[N, H, W, 3, 3, C]: the neighbourhood of every pixel, zero outside the image."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sliding_window_view(padded, (3, 3), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)


def _convolve(x: Array, filters: Array) -> Array:
    return np.tensordot(_patches(x), filters, axes=3)


def _pool(x: Array) -> Array:
    count, height, width, channels = x.shape
    return x.reshape(count, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def _spread(x: Array) -> Array:
    """Each pixel twice in both directions: the inverse of the shape change of pooling."""
    return x.repeat(2, axis=1).repeat(2, axis=2)


def forward(parameters: Parameters, images: Array) -> list[Array]:
    """All activations for images [N, 8, 8] in 0..1; the last entry is the logits [N, 10]."""
    activations = [images[..., None]]
    for layer in (1, 2):
        linear = _convolve(activations[-1], parameters[f"filter{layer}"]) + parameters[f"bias{layer}"]
        activations += [np.maximum(linear, 0), _pool(np.maximum(linear, 0))]
    features = activations[-1].reshape(len(images), -1)
    return [*activations, features @ parameters["dense"] + parameters["bias3"]]


def probabilities(parameters: Parameters, images: Array) -> Array:
    logits = forward(parameters, images)[-1]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def gradients(parameters: Parameters, images: Array, labels: NDArray[np.int64]) -> Parameters:
    """Gradients of the mean cross entropy."""
    image, relu1, pool1, relu2, pool2, logits = forward(parameters, images)
    count = len(images)
    delta = np.exp(logits - logits.max(axis=1, keepdims=True))
    delta /= delta.sum(axis=1, keepdims=True)
    delta[np.arange(count), labels] -= 1
    delta /= count
    result = {"dense": pool2.reshape(count, -1).T @ delta, "bias3": delta.sum(axis=0)}
    delta = (delta @ parameters["dense"].T).reshape(pool2.shape)
    for layer, source, relu, pool in ((2, pool1, relu2, pool2), (1, image, relu1, pool1)):
        delta = _spread(delta) * (relu == _spread(pool)) * (relu > 0)
        result[f"filter{layer}"] = np.tensordot(_patches(source), delta, axes=((0, 1, 2), (0, 1, 2)))
        result[f"bias{layer}"] = delta.sum(axis=(0, 1, 2))
        if layer == 2:
            flipped = parameters["filter2"][::-1, ::-1].transpose(0, 1, 3, 2)
            delta = _convolve(delta, flipped)
    return result


class Adam:
    """Kingma and Ba's method with their constants."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.first = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.second = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.steps = 0

    def step(self, gradient: Parameters, rate: float) -> None:
        """One update; ``rate`` scales the step."""
        self.steps += 1
        for name, value in gradient.items():
            self.first[name] += (1 - _DECAY1) * (value - self.first[name])
            self.second[name] += (1 - _DECAY2) * (value**2 - self.second[name])
            first = self.first[name] / (1 - _DECAY1**self.steps)
            second = self.second[name] / (1 - _DECAY2**self.steps)
            self.parameters[name] -= (rate * _STEP * first / (np.sqrt(second) + _EPSILON)).astype("f4")
