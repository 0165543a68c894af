"""Whether a server that runs already may be asked; routing and failover are in test_dispatch.py."""

from __future__ import annotations

import pytest
from servers.model_server import chat, raw_server

from airflow_provider_rollout.engine.exceptions import ServerStartError

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
REDIRECT = b"HTTP/1.1 301 Moved\r\nLocation: https://elsewhere/v1/models\r\nContent-Length: 0\r\n\r\n"


async def test_a_server_without_a_list_of_models_is_asked_all_the_same(opened):
    """Some gateways have none; the first request will tell."""
    async with raw_server(NOT_FOUND) as url, opened(url):
        pass


async def test_a_redirect_is_reported_with_what_to_do(opened):
    """A POST would not survive it."""
    async with raw_server(REDIRECT) as url, opened(url, is_ready=False) as it:
        with pytest.raises(ServerStartError, match="give the URL that it leads to"):
            await it.dispatcher.wait_ready()


@pytest.mark.parametrize("status", [b"500", b"502", b"503"])
async def test_a_server_that_is_still_loading_is_waited_for(opened, status):
    """So often as the config says."""
    answer = b"HTTP/1.1 " + status + b" No\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(answer) as url, opened(url, is_ready=False, server_ready_max_attempts=3) as it:
        with pytest.raises(ServerStartError, match=status.decode()):
            await it.dispatcher.wait_ready()
        with pytest.raises(ServerStartError):
            await it.generate(chat("x"))
