"""The engine runs without Airflow, and a DAG file is parsed without the engine's heavy packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "airflow_provider_rollout"
HEAVY = {"aiohttp", "boto3", "botocore", "httpx", "obstore", "pandas", "pyarrow", "sqlite3", "zstandard"}
OF_A_RUN = {"orjson", "psutil", "rich", "tenacity", "airflow.triggers.base", "airflow.sdk.definitions.retry_policy"}
OF_A_PARSE = {
    "airflow_provider_rollout",
    *(f"airflow_provider_rollout.engine{room}" for room in ("", ".config", ".exceptions")),
    *(f"airflow_provider_rollout.links{room}" for room in ("", ".inference")),
    *(
        f"airflow_provider_rollout.operators{room}"
        for room in ("", ".inference", ".lineage", ".parameters", ".reference", ".watching")
    ),
}

IMPORT_THE_ENGINE = """
import importlib, json, sys


class NoAirflow:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "airflow":
            raise ImportError(f"{name} is blocked: the engine must not know Airflow")


sys.meta_path.insert(0, NoAirflow())
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "airflow")))
"""

LOADED_BY = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    before = set(sys.modules)
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run(script: str, modules: list[str]) -> list[str]:
    """Import modules in a fresh interpreter and return what the script prints last: for LOADED_BY, what the last module added."""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(modules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def engine_modules() -> list[str]:
    """Every module of the engine."""
    places = [path.relative_to(PACKAGE.parent).with_suffix("") for path in (PACKAGE / "engine").rglob("*.py")]
    return sorted(".".join(place.parts).removesuffix(".__init__") for place in places)


def test_every_engine_module_imports_with_airflow_blocked():
    """The rollout job's image needs no Airflow."""
    modules = engine_modules()
    assert "airflow_provider_rollout.engine.config" in modules
    assert run(IMPORT_THE_ENGINE, modules) == []


@pytest.mark.parametrize(
    ("module", "more"),
    [
        ("airflow_provider_rollout.operators.inference", set()),
        ("airflow_provider_rollout.decorators.rollout", {"airflow_provider_rollout.decorators"}),
    ],
)
def test_a_dag_file_loads_what_checks_parameters_and_nothing_of_a_run(module, more):
    """No package of the store, the server or the data; and of ours no hook, launcher, trigger, storage or execution."""
    added = set(run(LOADED_BY, ["airflow.sdk", "airflow.sdk.bases.decorator", module]))
    assert {name for name in added if name.startswith("airflow_provider_rollout")} <= OF_A_PARSE | {module} | more
    assert module in added
    assert added & (HEAVY | OF_A_RUN) == set()


@pytest.mark.parametrize(
    "module",
    [
        "airflow_provider_rollout.triggers.inference",
        "airflow_provider_rollout.hooks.vllm",
        "airflow_provider_rollout.exceptions",
        "airflow_provider_rollout.links.inference",
    ],
)
def test_what_the_triggerer_and_the_web_server_import_is_light(module):
    """They import it in the loop that serves everybody; the store is opened later, in a thread."""
    added = set(run(LOADED_BY, ["airflow.sdk", "airflow.triggers.base", module]))
    assert module in added
    assert added & (HEAVY | OF_A_RUN) == set()


DATACLASSES_OF = """
import importlib, json, sys
names = json.loads(sys.argv[1])
kinds = {value for name in names for value in vars(importlib.import_module(name)).values() if isinstance(value, type)}
print(json.dumps(sorted(kind.__qualname__ for kind in kinds if kind.__module__ in names and "__dataclass_params__" in vars(kind))))
"""


def test_no_dataclass_is_made_where_a_dag_file_is_parsed():
    """Python writes and compiles the methods of each; those of the config alone took 9 ms, as structs they take 0.1 ms."""
    assert run(DATACLASSES_OF, sorted(OF_A_PARSE)) == []


IMPORT_COST = """
import json, time
started_s = time.process_time()
from airflow.sdk import DAG, ExceptionRetryPolicy, task
from airflow.sdk.bases.decorator import DecoratedOperator
of_airflow_s = time.process_time() - started_s
started_s = time.process_time()
import airflow_provider_rollout.operators.inference
print(json.dumps([of_airflow_s, time.process_time() - started_s]))
"""


def test_a_dag_file_that_imports_the_operator_is_parsed_as_fast_as_one_that_does_not():
    """The operator's own share is a twentieth of what any DAG file pays for airflow.sdk; the best of three, for the machine is shared."""
    shares = []
    for _ in range(3):
        of_airflow_s, ours_s = run(IMPORT_COST, [])
        shares.append(ours_s / of_airflow_s)
    assert min(shares) < 0.05, shares


def test_provider_discovery_imports_only_the_lobby():
    """Airflow reads get_provider_info before its own configuration is ready."""
    loaded = set(run(LOADED_BY, ["airflow_provider_rollout.get_provider_info"]))
    assert loaded & ({"airflow", "msgspec", "orjson"} | HEAVY) == set()
