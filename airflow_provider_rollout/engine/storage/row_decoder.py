"""One row becomes a Document, or the reason why it is none. Pure.

Receives: the fields of a row, from whichever format.        Hands on: Document.
Invariants: the text is a string that was there: a missing, null or other value is a reason, never "". What is neither
text, id nor media is metadata, so nothing of a row is lost; rows that this engine or datatrove has written come back as
the documents they were. Every string can be written as UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import Document, Media, content_id

__all__ = ["NotADocumentError", "decode_json", "decode_row"]

_MEDIA_FIELDS = frozenset(field.name for field in dataclasses.fields(Media)) - {"metadata"}


class NotADocumentError(ValueError):
    """The reason, as the end of a sentence that begins with the row's place."""


def decode_json(line: bytes) -> Any:
    """Decode one line of JSON; NaN, integers of any size and lone surrogates are taken as they are.

    Raises:
        NotADocumentError: it is not JSON, or not UTF-8.
    """
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        pass  # stdlib json takes what strict JSON does not have, and has the better message for the rest
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise NotADocumentError(f"is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise NotADocumentError("is nested too deeply") from None
    except ValueError as error:
        raise NotADocumentError(f"is not JSON: {error}") from None


def decode_row(row: Any, reader: ReaderConfig) -> Document:
    """Make a document of a row's fields.

    Raises:
        NotADocumentError: the row is none.
    """
    if not isinstance(row, dict):
        raise NotADocumentError(f"is {_kind(row)} and not an object")
    fields: dict[str, Any] = _plain(row)
    text = _text(fields, reader.text_field)
    document_id = _id(fields.pop(reader.id_field, None), reader.id_field)
    media = _media(fields)
    inner = fields.get("metadata")
    if isinstance(inner, str):
        inner = _json_or_none(inner, "{")
    if isinstance(inner, dict):
        del fields["metadata"]
        fields = inner | fields
    return Document(text=text, id=document_id or content_id(text, fields), media=media, metadata=fields)


def _text(fields: dict[str, Any], name: str) -> str:
    if name not in fields:
        known = ", ".join(list(fields)[:20]) or "none"
        raise NotADocumentError(f"has no field {name!r}; its fields are: {known}")
    text = fields.pop(name)
    if not isinstance(text, str):
        raise NotADocumentError(f"has {_kind(text)} as {name!r} and not a string")
    return text


def _id(value: Any, name: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise NotADocumentError(f"has {_kind(value)} as {name!r} and neither a string nor an integer")
    return str(value)


def _media(fields: dict[str, Any]) -> list[Media]:
    value = fields.get("media")
    if isinstance(value, str):
        value = _json_or_none(value, "[")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return []
    del fields["media"]
    return [_medium(item) for item in value]


def _medium(item: Mapping[str, Any]) -> Media:
    data = item.get("media_bytes")
    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error:
            raise NotADocumentError("has media whose 'media_bytes' is not base64") from None
    url, alt, metadata = item.get("url"), item.get("alt"), item.get("metadata")
    others = {name: value for name, value in item.items() if name not in _MEDIA_FIELDS and name != "metadata"}
    return Media(
        id=str(item.get("id") or ""),
        type=str(item.get("type") or ""),
        url=None if url is None else str(url),
        media_bytes=data,
        alt=None if alt is None else str(alt),
        metadata=(metadata if isinstance(metadata, dict) else {}) | others,
    )


def _json_or_none(text: str, opening: str) -> Any:
    """The value of a JSON text that begins as it should; Parquet output holds metadata and media so."""
    if not text.startswith(opening):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    """The same value without what no output can hold: lone surrogates, decimals, durations."""
    if isinstance(value, str):
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", dict: "an object", list: "a list", str: "a string"}
    return names.get(type(value)) or ("a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}")
