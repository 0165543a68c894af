"""Prompt rollouts without code."""

import pytest

from airflow_provider_rollout.engine.document import Document
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.prompt import PromptTemplate


def test_fields_are_filled_in_and_braces_kept():
    """Text, id, metadata; other values as JSON."""
    template = PromptTemplate("{id}: {text} {topic} {tags} {{x}}", system_prompt="Be brief.")
    document = Document("hello {text}", "7", metadata={"topic": "t", "tags": [1, None]})
    assert template.payload(document) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "7: hello {text} t [1,null] {x}"},
        ]
    }


def test_completions_get_one_prompt():
    """Without chat the system prompt comes first."""
    assert PromptTemplate("{text}", system_prompt="S", use_chat=False).payload(Document("T", "1")) == {
        "prompt": "S\n\nT"
    }


@pytest.mark.parametrize("template", ["{text", "{text.__class__}", "{text[0]}", "{text!r}", "{text:>9}", "{}", "{0}"])
def test_a_template_names_fields_and_nothing_else(template):
    """No attribute of a document is evaluated."""
    with pytest.raises(ConfigError, match="prompt_template"):
        PromptTemplate(template)


def test_a_missing_field_is_named():
    """The document fails with what it has."""
    with pytest.raises(KeyError, match=r"names the field 'topic'; the document has \['subject'\]"):
        PromptTemplate("{topic}").payload(Document("", "1", metadata={"subject": "s"}))
