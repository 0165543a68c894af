"""A server's process: its log, its end."""

from __future__ import annotations

import os
import sys

import pytest

from airflow_provider_rollout.engine.exceptions import ServerStartError
from airflow_provider_rollout.engine.serving.process import ServerProcess, read_tail


def test_the_tail_of_any_log_is_text_and_bounded(tmp_path):
    """Lines without end, bytes that are no UTF-8, no file at all."""
    path = tmp_path / "log"
    assert read_tail(path) == ""
    path.write_bytes(b"\xff\xfe" * 1_000_000 + b"\nthe end\n")
    tail = read_tail(path)
    assert tail.endswith("\nthe end")
    assert len(tail) <= 8192
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    assert read_tail(path).splitlines()[-1] == "line 999"
    assert len(read_tail(path).splitlines()) == 40


async def test_a_process_writes_to_its_log_and_its_tail_is_its_own(tmp_path):
    """A second start does not repeat the words of the first one."""
    path = tmp_path / "folder" / "log"
    for word in ("first", "second"):
        command = [sys.executable, "-c", f"import os; print('{word}', os.environ['X'], flush=True)"]
        async with ServerProcess(command, environment={**os.environ, "X": "y"}, log_path=path) as process:
            assert await process.wait(10) == 0
            assert process.log_tail() == f"{word} y"
    assert path.read_text() == "first y\nsecond y\n"


async def test_wait_is_bounded_and_leaving_the_block_ends_the_process(tmp_path):
    """None means that it still runs."""
    async with ServerProcess(["sleep", "600"], environment=os.environ, log_path=tmp_path / "log") as process:
        assert await process.wait(0.05) is None
        assert process.exit_code is None
    assert process.exit_code is not None


async def test_a_log_that_cannot_be_written_is_a_start_error(tmp_path):
    """Named, so that it can be put right."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(ServerStartError, match="file/log"):
        async with ServerProcess(["true"], environment=os.environ, log_path=tmp_path / "file" / "log"):
            pass
