"""Where secrets could leak to: the command lines of this machine, Airflow's database, its logs, and the objects of a store.

Receives: a running Airflow.        Hands on: the places where one of the secrets was seen.
Invariant: the connections of Airflow are encrypted in its database, so nothing there may show a secret, whatever the table.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
from cryptography.fernet import Fernet
from servers.airflow_stack import AirflowStack
from servers.seaweedfs import SECRET_ACCESS_KEY

from airflow_provider_rollout.engine.storage.object_store import ObjectStore

API_KEY = "key-of-the-model-server"
SECRETS = (SECRET_ACCESS_KEY, API_KEY)


def shown(data: bytes) -> list[str]:
    """The secrets in some bytes, plain or as hex digits."""
    return [secret for secret in SECRETS if secret.encode() in data or secret.encode().hex().encode() in data]


@contextmanager
def watch_command_lines() -> Iterator[list[str]]:
    """Look at all command lines again and again; those with a secret."""
    found: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:
                    continue
                found.extend([line.decode(errors="replace")] if shown(line) else [])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def database(stack: AirflowStack) -> dict[str, bytes]:
    """Every table of Airflow's database, as text."""
    with closing(_connect(stack)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        tables = {}
        for (name,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{name}" t')
            tables[name] = "\n".join(row for (row,) in cursor.fetchall()).encode()
        return tables


def trigger_arguments(stack: AirflowStack) -> list[Any]:
    """What Airflow keeps of the rollout triggers that wait; it encrypts only some of them."""
    fernet = Fernet(stack.environment["AIRFLOW__CORE__FERNET_KEY"])
    with closing(_connect(stack)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT kwargs FROM trigger WHERE classpath LIKE '%InferenceTrigger'")
        kept = [text for (text,) in cursor.fetchall()]
        return [json.loads(text if text.startswith("{") else fernet.decrypt(text.encode())) for text in kept]


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def objects(uri: str) -> dict[str, bytes]:
    """All objects below a URI."""

    async def read() -> dict[str, bytes]:
        store = ObjectStore.open(uri)
        return {info.key: await store.get(info.key) for info in await store.list()}

    return asyncio.run(read())


def _connect(stack: AirflowStack) -> Any:
    return psycopg2.connect(stack.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", ""))
