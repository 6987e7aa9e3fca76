"""Texts to numbers and back, by the package ``tokenizers`` (extra ``compat``), for files in its format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self


def _library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise ImportError("tokenizers are not installed; pip install tokenizers") from None
    return tokenizers


class Tokenizer:
    """Made by :meth:`from_file` or :meth:`from_huggingface_json`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    @classmethod
    def from_file(cls, path: str) -> Self:
        return cls(_library().Tokenizer.from_file(str(path)))

    @classmethod
    def from_huggingface_json(cls, text: str | bytes) -> Self:
        return cls(_library().Tokenizer.from_str(text.decode() if isinstance(text, bytes) else text))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        numbers: list[int] = self._raw.encode(text, add_special_tokens=add_special_tokens).ids
        return numbers

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        text: str = self._raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, number: int) -> str | None:
        token: str | None = self._raw.id_to_token(number)
        return token

    def token_to_id(self, token: str) -> int | None:
        number: int | None = self._raw.token_to_id(token)
        return number

    @property
    def vocab_size(self) -> int:
        return int(self._raw.get_vocab_size())
