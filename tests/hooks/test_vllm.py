"""What the connection says, and what of it may be stored."""

import http.server
import json
import sys
import threading

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.hooks.vllm import API_KEY_VARIABLE, ServerSettings, VllmHook

ENDPOINT = {"server_type": "endpoint", "model_name_or_path": "m"}


@pytest.fixture
def connect(monkeypatch):
    """Makes the connection ``gpu``."""

    def make(**fields) -> VllmHook:
        monkeypatch.setenv("AIRFLOW_CONN_GPU", json.dumps({"conn_type": "vllm", **fields}))
        return VllmHook("gpu")

    return make


@pytest.fixture
def server():
    """An endpoint that lists one model to whoever has its key."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == "Bearer sk-1"
            self.send_response(200 if allowed and self.path == "/v1/models" else 401)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "tiny"}]}')

        def log_message(self, *_) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running.server_address[1]
        running.shutdown()
        thread.join()


def test_a_missing_default_connection_means_the_defaults():
    """An operator works before anybody has made a connection."""
    assert VllmHook().settings == VllmHook(None).settings == ServerSettings()


def test_any_other_missing_connection_is_an_error():
    """Whoever names a connection wants it."""
    with pytest.raises(AirflowNotFoundException, match="no_such"):
        _ = VllmHook("no_such").settings


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "gpu1", "port": 8000}, "http://gpu1:8000"),
        ({"host": "gpu1", "schema": "https"}, "https://gpu1"),
        ({"host": "https://gpu1/base/", "port": 8443}, "https://gpu1:8443/base"),
        ({"host": "http://gpu1:8000/v1"}, "http://gpu1:8000/v1"),
        ({"host": "::1", "port": 8000}, "http://[::1]:8000"),
        ({"port": 8000}, None),
    ],
)
def test_host_port_and_schema_are_an_endpoint(connect, fields, url):
    """In every form in which people write them."""
    assert connect(**fields).settings.endpoint_url == url


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ({"vllm_command": "/opt/vllm/bin/vllm serve"}, ["/opt/vllm/bin/vllm", "serve"]),
        ({"vllm_command": ["/opt/with space/vllm", "serve"]}, ["/opt/with space/vllm", "serve"]),
        ({"vllm_command": ""}, None),
        ({}, None),
    ],
)
def test_the_command_is_a_line_or_a_list(connect, extra, command):
    """A line is split as a shell would."""
    hook = connect(extra=json.dumps(extra))
    config, _ = hook.complete({"server_type": "vllm", "model_name_or_path": "m"})
    assert hook.settings.vllm_command == config.server_command == command


@pytest.mark.parametrize(
    ("extra", "message"),
    [({"launcher": "slurm"}, "no launcher 'slurm'"), ({"vllm_command": {"a": 1}}, "vllm_command must be")],
)
def test_a_wrong_extra_says_what_is_wrong(connect, extra, message):
    """Where it is used, and when it is tested."""
    hook = connect(extra=json.dumps(extra))
    assert hook.test_connection()[0] is False
    with pytest.raises(ConfigError, match=message):
        _ = hook.settings


def test_the_endpoint_and_its_key_come_from_the_connection(connect):
    """The config holds the name of a variable, the job's environment the key."""
    config, secrets = connect(host="gpu1", port=8000, password="sk-1").complete(ENDPOINT)
    assert config.endpoint_urls == ("http://gpu1:8000",)
    assert (config.api_key, secrets) == (API_KEY_VARIABLE, {API_KEY_VARIABLE: "sk-1"})


def test_what_the_dag_says_outweighs_the_connection(connect):
    """A literal key is moved out of the config all the same."""
    given = {**ENDPOINT, "endpoint_url": "http://other", "api_key": "sk-2"}
    config, secrets = connect(host="gpu1", password="sk-1").complete(given)
    assert config.endpoint_urls == ("http://other",)
    assert (config.api_key, secrets) == (API_KEY_VARIABLE, {API_KEY_VARIABLE: "sk-2"})


def test_the_name_of_a_variable_stays_a_name(connect):
    """The job has it from its own environment."""
    config, secrets = connect(host="gpu1", password="sk-1").complete({**ENDPOINT, "api_key": "MY_API_KEY"})
    assert (config.api_key, secrets) == ("MY_API_KEY", {})


def test_an_endpoint_that_nobody_names_is_an_error():
    """Neither the config nor the connection has one."""
    with pytest.raises(ConfigError, match="endpoint_url"):
        VllmHook(None).complete(ENDPOINT)


def test_settings_do_not_show_the_key(connect):
    """They are logged by whoever debugs."""
    assert "sk-1" not in repr(connect(host="gpu1", password="sk-1").settings)


def test_the_test_button_lists_the_models_of_the_endpoint(connect, server):
    """It asks with the key."""
    ok, message = connect(host="127.0.0.1", port=server, password="sk-1").test_connection()
    assert ok
    assert message.endswith("serves tiny")


def test_the_test_button_tells_of_a_refusal(connect, server):
    """And never shows the key."""
    ok, message = connect(host="127.0.0.1", port=server, password="sk-wrong").test_connection()
    assert not ok
    assert "401" in message
    assert "sk-wrong" not in message


def test_the_test_button_looks_for_the_program(connect):
    """Without an endpoint, a job will start it."""
    ok, message = connect(extra=json.dumps({"vllm_command": sys.executable})).test_connection()
    assert (ok, sys.executable in message) == (True, True)
    assert connect(extra=json.dumps({"vllm_command": "no-such-program serve"})).test_connection()[0] is False
