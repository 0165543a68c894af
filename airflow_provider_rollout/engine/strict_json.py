"""The one way in which values become JSON bytes: strict, deterministic, and never refused for an odd character.

Receives: any value a rollout function may return.        Hands on: UTF-8 JSON that every strict reader takes.
Policy: NaN and infinities become null; a lone surrogate becomes U+FFFD; an integer beyond 64 bits becomes a decimal string; bytes
become base64 text; dates and times become RFC 3339; keys become strings; sets become sorted lists. Anything else raises TypeError.
Invariant: equal values give equal bytes when ``sort_keys`` is set, which is what the request cache hashes.
Source: RFC 8259 (no NaN, UTF-8); orjson's documented limits for integers and surrogates.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

__all__ = ["JSON", "dumps", "loads"]


JSON = dict[str, Any] | list[Any] | str | int | float | bool | None

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Encode a value as strict JSON.

    Raises:
        TypeError: the value holds an object that has no JSON form; the message names its type.
    """
    options = _OPTIONS | (orjson.OPT_SORT_KEYS if sort_keys else 0)
    try:
        return orjson.dumps(value, default=_default, option=options)
    except (TypeError, UnicodeEncodeError):
        cleaned = _clean(value)
    try:
        return orjson.dumps(cleaned, default=_default, option=options)
    except TypeError as error:
        # orjson puts its own, shorter message before the one of _default.
        raise error.__cause__ if isinstance(error.__cause__, TypeError) else error from None


def loads(data: bytes | str) -> Any:
    """Decode JSON; integers of any size are kept, NaN is refused.

    Raises:
        ValueError: the data is not JSON.
    """
    return msgspec.json.decode(data)


def _default(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(
        f"{type(value).__module__}.{type(value).__qualname__} has no JSON form; return text, numbers, lists or dicts"
    )


def _clean(value: Any) -> Any:
    """Rebuild a value without what orjson refuses."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if _INT64_MIN <= value <= _UINT64_MAX else str(int(value))
    if isinstance(value, Mapping):
        return {_clean_key(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [_clean(item) for item in sorted(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _clean(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _clean_key(key: Any) -> Any:
    return _clean(key) if isinstance(key, (str, int)) else key
