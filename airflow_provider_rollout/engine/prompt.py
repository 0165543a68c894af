"""Rollouts that need no code: a template becomes a prompt. Pure.

Receives: a template and a document.        Hands on: the payload of one generate call.
Invariant: a template names fields and nothing else: no attribute, index, conversion or format of it is evaluated.
"""

from __future__ import annotations

import string
from typing import Any

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.document import Document
from airflow_provider_rollout.engine.exceptions import ConfigError

__all__ = ["PromptTemplate"]


class PromptTemplate:
    """A template with ``{text}``, ``{id}`` and metadata fields; ``{{`` and ``}}`` are braces."""

    def __init__(self, template: str, *, system_prompt: str | None = None, use_chat: bool = True) -> None:
        """Parse the template.

        Raises:
            ConfigError: it is not well-formed, or holds more than names.
        """
        self._system_prompt = system_prompt
        self._use_chat = use_chat
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ConfigError(f"prompt_template: {error}; write {{{{ for a brace") from None
        self._pieces: list[tuple[str, str | None]] = []
        for literal, name, spec, conversion in parsed:
            if name is not None and (not name or spec or conversion or not name.replace("-", "_").isidentifier()):
                raise ConfigError(
                    f"prompt_template: {{{name}}} is not the plain name of a field; write {{{{ for a brace"
                )
            self._pieces.append((literal, name))

    def payload(self, document: Document) -> dict[str, Any]:
        """The payload for one document.

        Raises:
            KeyError: the document has no such field.
        """
        prompt = "".join(literal + (self._field(document, name) if name else "") for literal, name in self._pieces)
        system = self._system_prompt
        if not self._use_chat:
            return {"prompt": f"{system}\n\n{prompt}" if system else prompt}
        messages = [{"role": "system", "content": system}] if system else []
        return {"messages": [*messages, {"role": "user", "content": prompt}]}

    @staticmethod
    def _field(document: Document, name: str) -> str:
        if name in {"text", "id"}:
            return str(getattr(document, name))
        try:
            value = document.metadata[name]
        except KeyError:
            raise KeyError(
                f"prompt_template names the field {name!r}; the document has {sorted(document.metadata)}"
            ) from None
        return value if isinstance(value, str) else strict_json.dumps(value).decode()
