"""Finds which sentences mean something similar.

    pip install --no-deps wordllama && pip install tokenizers
    python examples/gallery/similar/similar.py "first sentence" "second sentence" ...

The weights are read where the package has them; the module is a few lines of MLIR, `similar.mlir`.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np

import jitree

HERE = Path(__file__).resolve().parent
SENTENCES = (
    "The cat sleeps on the sofa.",
    "A kitten naps on the couch.",
    "Interest rates rise again.",
    "The central bank lifts borrowing costs.",
    "The train to Berlin is late.",
)


def package() -> Path:
    found = importlib.util.find_spec("wordllama")
    if found is None or found.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps wordllama")
    return Path(found.origin).parent


def tokens(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of words and parts of words, and how many each sentence has."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(package() / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    found = [tokenizer.encode(sentence, add_special_tokens=False).ids for sentence in sentences]
    counts = np.array([len(one) for one in found], np.int32)
    return np.array([[*one, *[0] * (max(counts) - len(one))] for one in found], np.int32), counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sentences", nargs="*", default=list(SENTENCES))
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--target", default="vmvx", help="vmvx, llvm-cpu or cuda")
    options = parser.parse_args()
    weights = {"wordllama": package() / "weights" / "l2_supercat_256.safetensors"}
    with jitree.Session(options.device, parameters=weights) as session:
        model = session.load(HERE / f"similar.{options.target}.vmfb")
        embeddings = np.asarray(model.main(*tokens(options.sentences)))
    similarity = embeddings @ embeddings.T - 2 * np.eye(len(embeddings))
    for sentence, row in zip(options.sentences, similarity, strict=True):
        print(f"{sentence:40} {row.max():4.2f}  {options.sentences[row.argmax()]}")
