"""What Airflow loads as a plugin: the progress page, below ``/rollout`` of its web server.

Receives: nothing; every process of Airflow loads it.        Hands on: an ASGI app.
Invariant: costs nothing until somebody looks at the page, which is then imported in a thread, with all that it needs.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

__all__ = ["RolloutPlugin", "progress_app"]

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def progress_app(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
    """The page, as an ASGI app."""
    page = await asyncio.to_thread(importlib.import_module, "airflow_provider_rollout.plugins.page")
    await page.app(scope, receive, send)


class RolloutPlugin(AirflowPlugin):
    """Named in the package's entry points."""

    name = "rollout"
    fastapi_apps = [{"name": "Rollout progress", "app": progress_app, "url_prefix": "/rollout"}]  # noqa: RUF012 - Airflow declares it so
