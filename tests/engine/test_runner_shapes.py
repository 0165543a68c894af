"""Odd answers, from the server to the row: what the model said is kept, what is no answer is a dead letter, all of it strict JSON."""

from __future__ import annotations

import json

import pytest
from servers.rollout_job import dummy_process

from airflow_provider_rollout.engine import Document, InferenceConfig, InferenceRunner, JsonlWriter
from airflow_provider_rollout.engine.serving.faults import SHAPES

NO_ANSWER = {"null_message", "empty_choices", "no_choices", "html", "empty_body", "list", "error_in_200"}


def strict(line: str):
    """What a strict reader makes of a line."""
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture(scope="module")
def server():
    rules = [{"match": f"<{shape}>", "action": "shape", "shape": shape} for shape in SHAPES]
    with dummy_process("--faults", json.dumps(rules)) as process:
        yield process


async def run(server, folder, texts, **changes):
    """Rows by id, and dead letters by id."""

    async def ask(document, generate):
        return await generate({"messages": [{"role": "user", "content": document.text}]})

    values = {"server_type": "endpoint", "endpoint_url": server.url, "model_name_or_path": "dummy"}
    values |= {"retry_backoff_base_sec": 0.01, "max_request_attempts": 2}
    runner = InferenceRunner(ask, InferenceConfig(**{**values, **changes}), JsonlWriter(folder))
    await runner.run_async([Document(text, text) for text in texts])
    output = (folder / "00000_chunk_00000.jsonl").read_text()
    rows = {row["id"]: row["rollout_results"][0] for row in map(strict, output.split("\n")[:-1])}
    failed = folder / "_rollout" / "failed" / "00000" / "0000000.jsonl"
    letters = [strict(line) for line in failed.read_text().splitlines()] if failed.exists() else []
    return rows, {letter["document_id"]: letter for letter in letters}


async def test_every_shape_of_an_answer_ends_as_a_row_or_as_a_dead_letter(server, tmp_path):
    """Null content, reasoning only, tool calls, no usage, NaN, a lone surrogate, five megabytes; HTML, no choices, an error in a 200."""
    rows, letters = await run(server, tmp_path, [f"<{shape}>" for shape in SHAPES])
    assert set(rows) == {f"<{shape}>" for shape in set(SHAPES) - NO_ANSWER}
    assert {name: (letter["cause"], letter["attempts"]) for name, letter in letters.items()} == {
        **{f"<{shape}>": ("MalformedResponseError", 2) for shape in NO_ANSWER - {"error_in_200"}},
        "<error_in_200>": ("RequestRejectedError", 2),
    }
    assert letters["<error_in_200>"]["status"] == 503
    assert rows["<reasoning_only>"] == {
        "text": "",
        "finish_reason": "length",
        "reasoning": "I think",
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
    assert rows["<tool_calls>"]["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "f"}}]
    assert rows["<null_finish_reason>"]["finish_reason"] is None
    assert rows["<no_usage>"]["usage"] == {}
    assert rows["<nan>"]["logprobs"] == {"content": [{"logprob": None}, {"logprob": None}]}
    assert rows["<surrogate>"]["text"] == "\ufffd"
    assert len(rows["<huge>"]["text"]) == 5_000_000


async def test_several_choices_are_one_result_with_all_of_them(server, tmp_path):
    """``n=3``: the first is the result, two are its further choices; tokens are counted once."""
    rows, _ = await run(server, tmp_path, ["x"], default_generation_params={"n": 3})
    result = rows["x"]
    assert len({result["text"], *(choice["text"] for choice in result["choices"])}) == 3
    assert result["usage"]["completion_tokens"] == sum(
        len(text.split()) for text in (result["text"], *(choice["text"] for choice in result["choices"]))
    )


@pytest.mark.parametrize(("policy", "cause"), [("keep", None), ("fail", "TruncatedError")])
async def test_what_was_cut_at_the_limit_is_marked_or_refused(server, tmp_path, policy, cause):
    """``on_truncated``: the row says "length", or the document is a dead letter with the status it had."""
    rows, letters = await run(server, tmp_path, ["<reasoning_only>", "fine"], on_truncated=policy)
    assert letters.get("<reasoning_only>", {}).get("cause") == cause
    assert ("<reasoning_only>" in rows) == (cause is None)
    assert rows["fine"]["finish_reason"] == "stop"
