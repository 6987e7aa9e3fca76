"""Tokenizers by iree.runtime's names."""

from __future__ import annotations

from pathlib import Path

import pytest

import jitree.compat.iree_runtime as rt

TEXT = "hello the fox é\N{GRINNING FACE}"


@pytest.fixture(scope="module")
def json() -> str:
    """Bytes and two words; whole texts stand between <s> and </s>."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers are not installed")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<unk>", "<s>", "</s>", *alphabet, "he", "th", "the"]
    model = tokenizers.models.BPE(
        {name: place for place, name in enumerate(names)}, [("t", "h"), ("th", "e"), ("h", "e")],
        unk_token="<unk>",
    )  # fmt: skip
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return str(made.to_str())


@pytest.fixture
def tokenizer(json: str) -> rt.Tokenizer:
    return rt.Tokenizer.from_huggingface_json(json)


def test_texts_become_numbers_and_come_back(tokenizer: rt.Tokenizer) -> None:
    numbers = tokenizer.encode(TEXT)
    assert tokenizer.decode(numbers) == TEXT and tokenizer.encode("") == []
    assert tokenizer.encode("the", add_special_tokens=True) == [1, tokenizer.token_to_id("the"), 2]
    assert tokenizer.encode("a<s>")[-1] == 1
    assert 1 not in tokenizer.encode("a<s>", no_special_token_matching=True)
    assert tokenizer.decode([1, *numbers, 2, 99999, -1], skip_special_tokens=True) == TEXT
    assert tokenizer.id_to_token(1) == "<s>" and tokenizer.id_to_token(99999) is None
    assert tokenizer.token_to_id("nothing") is None
    assert (tokenizer.vocab_size, tokenizer.model_type) == (262, "BPE")
    assert tokenizer.special_ids["unk"] == 0 and tokenizer.special_ids["bos"] is None
    assert repr(tokenizer) == "<Tokenizer model_type='BPE' vocab_size=262>"


def test_streams_give_what_the_whole_gives(tokenizer: rt.Tokenizer) -> None:
    with tokenizer.encode_stream(add_special_tokens=True) as stream:
        found = [number for character in TEXT for number in stream.feed(character)]
        found += stream.finalize()
    assert found == tokenizer.encode(TEXT, True)
    pieces = tokenizer.decode_stream(skip_special_tokens=True)
    told = [pieces.feed_one(number) for number in found]
    assert "".join(told) == TEXT and told[1] == "he"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in told)
    assert pieces.finalize() == ""
    cut = tokenizer.decode_stream()
    assert cut.feed(tokenizer.encode("é")[:1]) == "" and cut.finalize() == "\N{REPLACEMENT CHARACTER}"


def test_a_stream_ends_once(tokenizer: rt.Tokenizer) -> None:
    for stream in (tokenizer.encode_stream(), tokenizer.decode_stream()):
        stream.finalize()
        with pytest.raises(ValueError, match="Cannot feed after finalize"):
            stream.feed("" if isinstance(stream, rt.TokenizerEncodeStream) else [])
        with pytest.raises(ValueError, match="Already finalized"):
            stream.finalize()


def test_what_is_no_tokenizer_is_refused(json: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json)
    assert rt.Tokenizer.from_file(tmp_path / "a.json").vocab_size == 262
    with pytest.raises(ValueError, match="Failed to open file"):
        rt.Tokenizer.from_file(tmp_path / "b.json")
    with pytest.raises(ValueError, match="Failed to parse"):
        rt.Tokenizer.from_huggingface_json("{}")
    with pytest.raises(NotImplementedError, match="cl100k_base"):
        rt.Tokenizer.from_tiktoken("", "cl100k_base")
    with pytest.raises(TypeError, match="no constructor"):
        rt.Tokenizer()
