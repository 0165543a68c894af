"""How a function object becomes a reference, and which are refused with which words."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.reference import load_reference
from airflow_provider_rollout.operators.reference import reference_of

FILE = Path(__file__).parent / "rollout_functions.py"


@pytest.fixture(scope="module")
def functions():
    """The functions, loaded as Airflow loads a DAG file: under a made up name."""
    name = "unusual_prefix_0123_rollout_functions"
    spec = importlib.util.spec_from_file_location(name, FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def test_a_function_of_a_dag_file_is_named_by_its_file(functions):
    """The made up name means nothing to the job; the file does."""
    reference = reference_of(functions.good)
    assert reference == f"{FILE}:good"
    assert load_reference(reference).__code__.co_code == functions.good.__code__.co_code


def test_a_function_of_a_module_on_the_path_is_named_by_its_module(tmp_path, monkeypatch):
    """The bundle's folder is on the job's path too, and the module may import its neighbours."""
    package = tmp_path / "my_company" / "rollouts"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "score.py").write_text("async def score(document, generate): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("my_company.rollouts.score")
    assert reference_of(module.score) == "my_company.rollouts.score:score"


def test_a_static_method_is_named_by_its_class(functions):
    """Dots lead to it."""
    reference = reference_of(functions.Holder.static)
    assert reference == f"{FILE}:Holder.static"
    assert load_reference(reference) is not None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: lambda _document, _generate: None, "a lambda has no name"),
        (lambda f: f.make_nested(), r"make_nested\.nested is defined inside a function.*module level"),
        (lambda f: f.Holder().method, "bound to an object"),
        (lambda f: functools.partial(f.good, threshold=2), "functools.partial has no name.*rollout_kwargs"),
        (lambda f: f.CallableObject(), "got CallableObject"),
        (lambda f: f.sync, "sync is not async; write `async def sync"),
        (lambda f: f.only_document, "must take a document and generate"),
    ],
)
def test_what_the_job_could_not_find_is_refused_with_the_reason(functions, make, reason):
    """When the DAG is parsed, not hours later."""
    with pytest.raises(ConfigError, match=reason):
        reference_of(make(functions))
