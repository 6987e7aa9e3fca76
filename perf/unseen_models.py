"""Writes models of usual architectures with random weights as ONNX files; used by `unseen.py`.

No code of jitree was tuned on them. Sizes are those of the published models, or less where these only repeat
the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from graphs import Graph
from onnx import TensorProto


def mobilenet_v2(path: Path) -> Path:
    g = Graph()
    x = g.relu6(g.conv(g.input((1, 3, 224, 224)), 32, 3, 2))
    for expansion, features, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            x = inverted(g, x, expansion, features, stride if index == 0 else 1)
    return g.saved(path, g.classified(g.relu6(g.conv(x, 1280, 1)), 1000))


def inverted(g: Graph, x: str, expansion: int, features: int, stride: int) -> str:
    channels = g.channels(x)
    inner = g.relu6(g.conv(x, channels * expansion, 1)) if expansion > 1 else x
    result = g.conv(g.relu6(g.depthwise(inner, 3, stride)), features, 1)
    return g.op("Add", x, result) if stride == 1 and channels == features else result


def mobilenet_v3(path: Path) -> Path:
    """The small one: 3 by 3 and 5 by 5, squeeze and excitation, hard swish."""
    g = Graph()
    x = g.op("HardSwish", g.conv(g.input((1, 3, 224, 224)), 16, 3, 2))
    for kernel, wide, features, squeeze, act, stride in (
        (3, 16, 16, 8, "Relu", 2), (3, 72, 24, 0, "Relu", 2), (3, 88, 24, 0, "Relu", 1),
        (5, 96, 40, 24, "HardSwish", 2), (5, 240, 40, 64, "HardSwish", 1), (5, 240, 40, 64, "HardSwish", 1),
        (5, 120, 48, 32, "HardSwish", 1), (5, 144, 48, 40, "HardSwish", 1), (5, 288, 96, 72, "HardSwish", 2),
        (5, 576, 96, 144, "HardSwish", 1), (5, 576, 96, 144, "HardSwish", 1),
    ):  # fmt: skip
        channels = g.channels(x)
        inner = g.op(act, g.conv(x, wide, 1)) if wide != channels else x
        inner = g.op(act, g.depthwise(inner, kernel, stride))
        inner = g.squeezed(inner, squeeze) if squeeze else inner
        result = g.conv(inner, features, 1)
        x = g.op("Add", x, result) if stride == 1 and channels == features else result
    return g.saved(path, g.classified(g.op("HardSwish", g.conv(x, 576, 1)), 1000))


def efficientnet(path: Path) -> Path:
    """B0 with each block twice at most."""
    g = Graph()
    x = g.silu(g.conv(g.input((1, 3, 224, 224)), 32, 3, 2))
    for kernel, expansion, features, count, stride in (
        (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 2, 2), (5, 6, 112, 2, 1),
        (5, 6, 192, 2, 2), (3, 6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            channels, step = g.channels(x), stride if index == 0 else 1
            inner = g.silu(g.conv(x, channels * expansion, 1)) if expansion > 1 else x
            inner = g.silu(g.depthwise(inner, kernel, step))
            result = g.conv(g.squeezed(inner, channels // 4, "Silu", "Sigmoid"), features, 1)
            x = g.op("Add", x, result) if step == 1 and channels == features else result
    return g.saved(path, g.classified(g.silu(g.conv(x, 1280, 1)), 1000))


def resnet18(path: Path) -> Path:
    g = Graph()
    x = residual_layers(g, g.input((1, 3, 224, 224)))
    return g.saved(path, g.classified(x, 1000))


def residual_layers(g: Graph, x: str, width: int = 64) -> str:
    x = g.relu(g.conv(x, width, 7, 2))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage in range(4):
        features = width << stage
        for index in range(2):
            stride = 2 if stage and not index else 1
            inner = g.conv(g.relu(g.conv(x, features, 3, stride)), features, 3)
            kept = x if stride == 1 else g.conv(x, features, 1, stride, pad=0)
            x = g.relu(g.op("Add", inner, kept))
    return x


def convnext(path: Path) -> Path:
    """The first two stages of ConvNeXt-atto: 7 by 7, layer normalisation of channels, GELU."""
    g = Graph()
    x = g.conv(g.input((1, 3, 224, 224)), 40, 4, 4, pad=0)
    for width, blocks in ((40, 2), (80, 2)):
        if width != g.channels(x):
            x = g.conv(x, width, 2, 2, pad=0)
        for _ in range(blocks):
            inner = g.op("Transpose", g.depthwise(x, 7), perm=[0, 2, 3, 1])
            inner = g.linear(g.layer_norm(inner, width), width, 4 * width)
            inner = g.linear(g.gelu(inner), 4 * width, width)
            x = g.op("Add", x, g.op("Transpose", inner, perm=[0, 3, 1, 2]))
    return g.saved(path, g.classified(x, 1000))


def unet(path: Path) -> Path:
    """Segmentation: down by maxima, up by transposed convolutions of 2 by 2, with what was there before."""
    g = Graph()
    x, kept = g.input((1, 3, 160, 160)), []
    for features in (16, 32, 64):
        x = g.relu(g.conv(g.relu(g.conv(x, features)), features))
        kept.append(x)
        x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.relu(g.conv(g.relu(g.conv(x, 128)), 128))
    for before in reversed(kept):
        features = g.channels(before)
        x = g.concatenated(g.transposed(x, features, 2, 0), before)
        x = g.relu(g.conv(g.relu(g.conv(x, features)), features))
    return g.saved(path, g.op("Sigmoid", g.conv(x, 1, 1)))


def super_resolution(path: Path) -> Path:
    """ESPCN: sub-pixel convolution, three times as large."""
    g = Graph()
    x = g.relu(g.conv(g.input((1, 1, 112, 112)), 64, 5))
    x = g.relu(g.conv(g.relu(g.conv(x, 64)), 32))
    return g.saved(path, g.op("DepthToSpace", g.conv(x, 9), blocksize=3, mode="CRD"))


def pose(path: Path) -> Path:
    """Heat maps of 17 joints: a residual network of half the width, and three transposed convolutions."""
    g = Graph()
    x = residual_layers(g, g.input((1, 3, 192, 144)), 32)
    for _ in range(3):
        x = g.relu(g.transposed(x, 64, 4, 1))
    return g.saved(path, g.conv(x, 17, 1))


def style(path: Path) -> Path:
    """Fast style transfer: reflected edges, instance normalisation, nearest upsampling."""
    g = Graph()
    x = g.input((1, 3, 96, 96))
    for features, kernel, stride in ((16, 9, 1), (32, 3, 2), (64, 3, 2), (64, 3, 1), (64, 3, 1)):
        pads = g.shape(0, 0, kernel // 2, kernel // 2, 0, 0, kernel // 2, kernel // 2)
        x = g.conv(g.op("Pad", x, pads, mode="reflect"), features, kernel, stride, pad=0)
        scale, bias = g.constant(np.ones(features)), g.bias(features)
        x = g.relu(g.op("InstanceNormalization", x, scale, bias, epsilon=1e-5))
    for features in (32, 16):
        scales = g.constant((1, 1, 2, 2))
        x = g.op("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
        x = g.relu(g.conv(x, features))
    return g.saved(path, g.op("Tanh", g.conv(x, 3, 9)))


def audio(path: Path) -> Path:
    """100 frames of 80 mel bands: dilated 1-D convolutions, a GRU, a product a frame."""
    g = Graph()
    x = g.input((1, 80, 200))
    x = g.relu(g.conv1d(x, 128, 5, 2))
    for dilation in (1, 2, 4):
        x = g.op("Add", x, g.relu(g.conv1d(x, 128, 3, dilation=dilation)))
    rows = g.op("Transpose", x, perm=[2, 0, 1])
    hidden, inputs = 128, 128
    state, _ = g.ops(
        "GRU", rows, g.weight(1, 3 * hidden, inputs, inputs=inputs),
        g.weight(1, 3 * hidden, hidden, inputs=hidden),
        g.constant(g.random.standard_normal((1, 6 * hidden)) * 0.1),
        results=2, hidden_size=hidden, linear_before_reset=1,
    )  # fmt: skip
    flat = g.op("Reshape", state, g.shape(100, hidden))
    return g.saved(path, g.op("Softmax", g.linear(flat, hidden, 40), axis=-1))


def waveform(path: Path) -> Path:
    """The first layers of a recogniser of speech: 1-D convolutions over a second of samples."""
    g = Graph()
    x = g.input((1, 1, 16000))
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2)):
        x = g.gelu(g.conv1d(x, 256, kernel, stride))
    return g.saved(path, x)


def keyword(path: Path) -> Path:
    """Words in a second of sound: depthwise separable convolutions (DS-CNN)."""
    g = Graph()
    x = g.relu(g.conv(g.input((1, 1, 49, 10)), 64, 5, 2))
    for _ in range(4):
        x = g.relu(g.conv(g.relu(g.depthwise(x, 3)), 64, 1))
    return g.saved(path, g.op("Softmax", g.classified(x, 12), axis=-1))


def tabular(path: Path) -> Path:
    """64 rows of 50 numbers through three layers."""
    g = Graph()
    x = g.input((64, 50))
    for inputs, outputs in ((50, 256), (256, 256), (256, 128)):
        x = g.relu(g.linear(x, inputs, outputs))
    return g.saved(path, g.op("Softmax", g.linear(x, 128, 10), axis=-1))


def encoder_layer(g: Graph, x: str, rows: int, width: int, heads: int) -> str:
    """A layer that normalises before it computes."""
    x = g.op("Add", x, g.attention(g.layer_norm(x, width), rows, width, heads))
    inner = g.gelu(g.linear(g.layer_norm(x, width), width, 4 * width))
    return g.op("Add", x, g.linear(inner, 4 * width, width))


def vit(path: Path) -> Path:
    """ViT-tiny with four layers of twelve."""
    g = Graph()
    width, rows = 192, 197
    patches = g.conv(g.input((1, 3, 224, 224)), width, 16, 16, pad=0)
    x = g.op("Transpose", g.op("Reshape", patches, g.shape(1, width, 196)), perm=[0, 2, 1])
    x = g.op("Concat", g.constant(g.random.standard_normal((1, 1, width))), x, axis=1)
    x = g.op("Add", x, g.constant(g.random.standard_normal((1, rows, width)) * 0.1))
    for _ in range(4):
        x = encoder_layer(g, x, rows, width, 3)
    first = g.op("Gather", g.layer_norm(x, width), g.constant(0, np.int64), axis=1)
    return g.saved(path, g.linear(first, width, 1000))


def bert(path: Path) -> Path:
    """Two layers of 256 for 128 tokens, with embeddings; each layer normalises what it has computed."""
    g = Graph()
    width, rows = 256, 128
    x = g.op("Gather", g.weight(2000, width, inputs=1), g.input((1, rows), TensorProto.INT64), axis=0)
    x = g.layer_norm(g.op("Add", x, g.weight(1, rows, width, inputs=1)), width)
    for _ in range(2):
        x = g.layer_norm(g.op("Add", x, g.attention(x, rows, width, 4)), width)
        inner = g.linear(g.gelu(g.linear(x, width, 4 * width)), 4 * width, width)
        x = g.layer_norm(g.op("Add", x, inner), width)
    return g.saved(path, x)


def decoder(path: Path) -> Path:
    """A step of two layers with a cache of 512 rows: RoPE, RMSNorm, SiLU, eight heads over two caches."""
    g = Graph()
    width, heads, shared, size, rows = 512, 8, 2, 64, 512
    x, angles = g.input((1, width)), g.input((1, size // 2))
    cosine, sine = g.op("Cos", angles), g.op("Sin", angles)
    results = []
    for _ in range(2):
        keys, values = g.input((shared, rows - 1, size)), g.input((shared, rows - 1, size))
        y = g.rms_norm(x, width)
        query = g.op("Reshape", g.linear(y, width, width, False), g.shape(heads, size))
        key = g.op("Reshape", g.linear(y, width, shared * size, False), g.shape(shared, size))
        query, key = rotated(g, query, cosine, sine), rotated(g, key, cosine, sine)
        value = g.op("Reshape", g.linear(y, width, shared * size, False), g.shape(shared, 1, size))
        keys = g.op("Concat", keys, g.op("Reshape", key, g.shape(shared, 1, size)), axis=1)
        values = g.op("Concat", values, value, axis=1)
        query = g.op("Reshape", query, g.shape(shared, heads // shared, size))
        scores = g.op("MatMul", query, g.op("Transpose", keys, perm=[0, 2, 1]))
        weights = g.op("Softmax", g.op("Mul", scores, g.constant(size**-0.5)), axis=-1)
        mixed = g.op("Reshape", g.op("MatMul", weights, values), g.shape(1, width))
        x = g.op("Add", x, g.linear(mixed, width, width, False))
        y = g.rms_norm(x, width)
        inner = g.op("Mul", g.silu(g.linear(y, width, 1376, False)), g.linear(y, width, 1376, False))
        x = g.op("Add", x, g.linear(inner, 1376, width, False))
        results += [keys, values]
    return g.saved(path, g.linear(g.rms_norm(x, width), width, 4000, False), *results)


def rotated(g: Graph, x: str, cosine: str, sine: str) -> str:
    """Each half of a head turned by the other."""
    left, right = g.ops("Split", x, g.shape(32, 32), results=2, axis=-1)
    first = g.op("Sub", g.op("Mul", left, cosine), g.op("Mul", right, sine))
    second = g.op("Add", g.op("Mul", right, cosine), g.op("Mul", left, sine))
    return g.op("Concat", first, second, axis=-1)


def lstm(path: Path) -> Path:
    """16 steps of a cell, one by one: what a quantiser takes, in place of the operator."""
    g = Graph()
    inputs, hidden = 128, 256
    frames = g.ops("Split", g.input((16, inputs)), g.shape(*[1] * 16), results=16, axis=0)
    weight, inner = g.weight(inputs, 4 * hidden, inputs=inputs), g.weight(hidden, 4 * hidden, inputs=hidden)
    bias = g.bias(4 * hidden)
    state = cell = ""
    for frame in frames:
        gates = g.op("Add", g.op("MatMul", frame, weight), bias)
        if state:
            gates = g.op("Add", gates, g.op("MatMul", state, inner))
        opened, kept, candidate, shown = g.ops("Split", gates, g.shape(*[hidden] * 4), results=4, axis=-1)
        fresh = g.op("Mul", g.op("Sigmoid", opened), g.op("Tanh", candidate))
        cell = g.op("Add", g.op("Mul", g.op("Sigmoid", kept), cell), fresh) if cell else fresh
        state = g.op("Mul", g.op("Sigmoid", shown), g.op("Tanh", cell))
    return g.saved(path, g.linear(state, hidden, 40))


MODELS: Final[dict[str, Callable[[Path], Path]]] = {
    "mobilenet_v2": mobilenet_v2, "mobilenet_v3": mobilenet_v3, "efficientnet": efficientnet,
    "resnet18": resnet18, "convnext": convnext, "unet": unet,
    "super_resolution": super_resolution, "pose": pose, "style": style,
    "audio": audio, "waveform": waveform, "keyword": keyword, "tabular": tabular, "vit": vit, "bert": bert,
    "decoder": decoder, "lstm": lstm,
}  # fmt: skip
QUANTISED: Final = ("mobilenet_v2", "resnet18", "lstm", "keyword")
"""Those that are also quantised: i8 weights and activations, as QuantizeLinear and DequantizeLinear say."""
