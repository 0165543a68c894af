"""When the dummy server plays which fault."""

from __future__ import annotations

import pytest

from airflow_provider_rollout.engine.serving.faults import SHAPES, load_script


def played(script, prompts):
    """For each prompt, whether a rule applied."""
    return [script.choose(prompt) is not None for prompt in prompts]


def test_match_every_first_and_times():
    """Each condition alone."""
    assert played(load_script('[{"action":"drop","match":"b"}]'), ["ab", "ac"]) == [True, False]
    assert played(load_script('[{"action":"drop","every":3}]'), "abcdef") == [False, False, True, False, False, True]
    assert played(load_script('[{"action":"drop","first":1}]'), "aabba") == [True, False, True, False, False]
    assert played(load_script('[{"action":"drop","times":2}]'), "abc") == [True, True, False]


def test_share_chooses_by_the_prompt_and_so_always_the_same():
    """About a tenth, and on every run the same tenth."""
    prompts = [f"doc {index}" for index in range(1000)]
    first, second = (played(load_script('[{"action":"drop","share":0.1}]'), prompts) for _ in range(2))
    assert first == second
    assert 60 < sum(first) < 140


def test_the_first_rule_that_matches_applies():
    """A script reads from top to bottom."""
    script = load_script('[{"action":"status","status":429,"first":1},{"action":"hang"}]')
    rules = [script.choose("x"), script.choose("x")]
    assert [rule.action for rule in rules if rule] == ["status", "hang"]


@pytest.mark.parametrize(
    "text", ['[{"action":"explode"}]', '[{"action":"drop","evry":2}]', '[{"action":"shape","shape":"x"}]']
)
def test_a_wrong_rule_is_refused_when_it_is_read(text):
    """A test must not pass because its fault was never played."""
    with pytest.raises(ValueError, match=r"explode|evry|no shape"):
        load_script(text)


def test_every_shape_has_a_body():
    """Small ones but for the one that is huge by intent."""
    assert all(len(body) < 1000 for name, body in SHAPES.items() if name != "huge")
