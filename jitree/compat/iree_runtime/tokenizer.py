"""Turns texts into numbers and back, by the package ``tokenizers``.

It is the extra ``compat``; files are in its format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from jitree.base.pipes import input_file
from jitree.compat.iree_runtime.arguments import a, flag, i64, takes, text
from jitree.errors import UnimplementedError, is_interruption, pass_interruption

_SPECIAL: Final = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


def _library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise ImportError("tokenizers are not installed; pip install tokenizers") from None
    return tokenizers


def _numbers(value: Any) -> list[int]:
    return [i64(item) for item in a(Sequence)(value)]


class Tokenizer:
    """Made by :meth:`from_file` or :meth:`from_huggingface_json`."""

    def __init__(self) -> None:
        raise TypeError("Tokenizer: no constructor defined")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """ValueError for a file that is not there or is no tokenizer."""
        name = os.fspath(path)
        try:
            with input_file(name) as file:
                content = file.read().decode()
        except OSError as error:
            pass_interruption(error)
            raise ValueError(f"Failed to open file: {name}: {error.strerror}") from None
        return cls._read(content, f"Failed to load tokenizer: {name}")

    @staticmethod
    @takes(text)
    def from_huggingface_json(json: str) -> Tokenizer:
        """ValueError for other text."""
        return Tokenizer._read(json, "Failed to parse HuggingFace tokenizer JSON")

    @staticmethod
    @takes(text, text)
    def from_tiktoken(data: str, encoding: str) -> Tokenizer:
        """UNIMPLEMENTED: ``tokenizers`` reads its own format only."""
        raise UnimplementedError(f"the encoding {encoding} of tiktoken must be converted to a tokenizer.json")

    @classmethod
    def _read(cls, json: str, failure: str) -> Self:
        made = cls.__new__(cls)
        made._json = json
        made._literal = None
        try:
            made._raw = _library().Tokenizer.from_str(json)
        except ImportError:
            raise
        except Exception as error:  # the package raises no narrower class
            if is_interruption(error):
                raise
            raise ValueError(f"{failure}: {error}") from None
        return made

    _json: str
    _raw: Any
    _literal: Any

    def _matching(self, no_special_token_matching: bool) -> Any:
        """Finds a tokenizer that takes special tokens for text: that is a state, so another."""
        if not no_special_token_matching:
            return self._raw
        if self._literal is None:
            literal = _library().Tokenizer.from_str(self._json)
            literal.encode_special_tokens = True
            self._literal = literal
        return self._literal

    @takes(text, flag, flag)
    def encode(
        self, text: str, add_special_tokens: bool = False, no_special_token_matching: bool = False
    ) -> list[int]:
        raw = self._matching(no_special_token_matching)
        return list(raw.encode(text, add_special_tokens=add_special_tokens).ids)

    @takes(_numbers, flag)
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Numbers without a token give nothing."""
        known = [number for number in token_ids if self.id_to_token(number) is not None]
        return str(self._raw.decode(known, skip_special_tokens=skip_special_tokens))

    @takes(flag, flag)
    def encode_stream(
        self, add_special_tokens: bool = False, no_special_token_matching: bool = False
    ) -> TokenizerEncodeStream:
        return TokenizerEncodeStream._of(
            lambda given: self.encode(given, add_special_tokens, no_special_token_matching)
        )

    @takes(flag)
    def decode_stream(self, skip_special_tokens: bool = False) -> TokenizerDecodeStream:
        return TokenizerDecodeStream._of(lambda given: self.decode(given, skip_special_tokens))

    @takes(i64)
    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._raw.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        return token

    @takes(text)
    def token_to_id(self, token: str) -> int | None:
        number: int | None = self._raw.token_to_id(token)
        return number

    @property
    def vocab_size(self) -> int:
        return int(self._raw.get_vocab_size())

    @property
    def model_type(self) -> str:
        return type(self._raw.model).__name__

    @property
    def special_ids(self) -> dict[str, int | None]:
        """The token for what is unknown is the model's; files do not say which the others are."""
        unknown = getattr(self._raw.model, "unk_token", None)
        known = {"unk": unknown and self._raw.token_to_id(unknown)}
        return dict.fromkeys(_SPECIAL) | known

    def __repr__(self) -> str:
        return f"<Tokenizer model_type='{self.model_type}' vocab_size={self.vocab_size}>"


class _Stream:
    """What is fed piece by piece."""

    _convert: Callable[[Any], Any]
    _is_final = False

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: no constructor defined")

    @classmethod
    def _of(cls, convert: Callable[[Any], Any]) -> Self:
        made = cls.__new__(cls)
        made._convert = convert
        made._begin()
        return made

    def _begin(self) -> None: ...

    def _require_open(self) -> None:
        if self._is_final:
            raise ValueError("Cannot feed after finalize")

    def _end(self) -> None:
        if self._is_final:
            raise ValueError("Already finalized")
        self._is_final = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self._is_final = True


class TokenizerEncodeStream(_Stream):
    """Gives tokens at the end. What follows may change those of what has been fed."""

    def _begin(self) -> None:
        self._text = ""

    @takes(text)
    def feed(self, chunk: str) -> list[int]:
        self._require_open()
        self._text += chunk
        return []

    def finalize(self) -> list[int]:
        self._end()
        return list(self._convert(self._text))


class TokenizerDecodeStream(_Stream):
    """Gives text as soon as later tokens cannot change it. That is when it ends in a whole character."""

    def _begin(self) -> None:
        self._told: list[int] = []
        """Tokens before those that wait, whose text is out: decoders look at what stands before."""
        self._waiting: list[int] = []

    @takes(_numbers)
    def feed(self, token_ids: Sequence[int]) -> str:
        self._require_open()
        self._waiting += token_ids
        found = self._new()
        if not found or found.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._told, self._waiting = self._waiting, []
        return found

    @takes(i64)
    def feed_one(self, token_id: int) -> str:
        return self.feed([token_id])

    def finalize(self) -> str:
        self._end()
        return self._new()

    def _new(self) -> str:
        found: str = self._convert([*self._told, *self._waiting])
        return found[len(self._convert(self._told)) :]
