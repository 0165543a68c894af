"""Rules of the configuration: wrong input is told where it is given, and no secret leaves."""

import pytest

from airflow_provider_rollout.engine.config import (
    FailureBudget,
    InferenceConfig,
    JobSpec,
    ReaderConfig,
    is_environment_name,
    job_spec_bytes,
    job_spec_from_bytes,
    resolve_api_key,
)
from airflow_provider_rollout.engine.exceptions import ConfigError


def config(**changes) -> InferenceConfig:
    """A valid config."""
    return InferenceConfig(**{"server_type": "dummy", "model_name_or_path": "tiny", **changes})


def spec(**changes) -> JobSpec:
    """A valid spec."""
    values = {
        "job_id": "cli-1",
        "source": ["in/*.jsonl"],
        "output": "out",
        "config": config(),
        "rollout": "package.module:function",
    }
    return JobSpec(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"server_type": "vlm"}, "server_type"),
        ({"model_name_or_path": ""}, "model_name_or_path"),
        ({"tp": 0}, "tp"),
        ({"tp": "2"}, "tp"),
        ({"tp": 1.5}, "tp"),
        ({"max_concurrent_generations": -1}, "max_concurrent_generations"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"master_port": 70000}, "master_port"),
        ({"default_generation_params": [1]}, "default_generation_params"),
        ({"server_type": "endpoint"}, "endpoint_url: needed"),
        ({"endpoint_url": "http://host"}, "only for"),
        ({"server_type": "endpoint", "endpoint_url": "host:8000"}, "does not start with http"),
        ({"server_type": "custom"}, "server_command: needed"),
        ({"on_truncated": "drop"}, "on_truncated"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field(changes, told):
    """A DAG with a wrong value does not parse, and the message names the parameter."""
    with pytest.raises(ConfigError, match=told):
        config(**changes)


def test_an_unknown_name_is_refused_with_the_nearest_known_one():
    """A typo in a JSON config is not dropped in silence."""
    with pytest.raises(ConfigError, match="did you mean 'max_concurrent_generations'"):
        InferenceConfig.from_dict({"server_type": "dummy", "model_name_or_path": "m", "max_concurent_generations": 3})


def test_a_missing_name_is_told():
    """A config without a model is refused as a config, not as a Python call."""
    with pytest.raises(ConfigError, match="model_name_or_path"):
        InferenceConfig.from_dict({"server_type": "dummy"})


def test_an_integer_is_taken_for_seconds():
    """``metric_interval=60`` is what people write."""
    assert config(metric_interval=60).metric_interval == 60.0


def test_one_url_and_several_urls_read_alike():
    """One endpoint is a list of one."""
    one = config(server_type="endpoint", endpoint_url="http://a")
    two = config(server_type="endpoint", endpoint_url=["http://a", "http://b"])
    assert one.endpoint_urls == ("http://a",)
    assert two.endpoint_urls == ("http://a", "http://b")
    assert config().endpoint_urls == ()


def test_documents_in_flight_default_to_the_number_of_requests():
    """A document has at least one request in flight."""
    assert config(max_concurrent_generations=7).documents_in_flight == 7
    assert config(max_concurrent_documents=3).documents_in_flight == 3


def test_a_config_cannot_be_changed():
    """Rooms hand configs on; none edits one."""
    with pytest.raises(AttributeError):
        config().tp = 2


def test_the_repr_hides_the_key():
    """A config may be logged."""
    assert "s3cr3t" not in repr(config(api_key="s3cr3t"))


@pytest.mark.parametrize(
    ("value", "is_name"),
    [("OPENAI_API_KEY", True), ("EMPTY", False), ("sk-abc_DEF", False), ("A_1", True), ("_A", False), ("A_\n", False)],
)
def test_a_name_is_told_from_a_key(value, is_name):
    """Capitals with an underscore name a variable; anything else is a key."""
    assert is_environment_name(value) is is_name


def test_a_key_is_read_from_the_environment_of_the_job(monkeypatch):
    """The spec holds the name, the job's environment the key."""
    monkeypatch.setenv("MODEL_API_KEY", "s3cr3t")
    monkeypatch.delenv("OTHER_API_KEY", raising=False)
    assert resolve_api_key("MODEL_API_KEY") == "s3cr3t"
    assert resolve_api_key("literal") == "literal"
    assert resolve_api_key(None) is None
    with pytest.raises(ConfigError, match="OTHER_API_KEY"):
        resolve_api_key("OTHER_API_KEY")


def test_a_spec_survives_its_stored_form():
    """What a launcher stores is what the job reads."""
    written = spec(
        config=config(api_key="MODEL_API_KEY", model_kwargs={"max_num_seqs": 4}),
        reader=ReaderConfig(on_bad_row="skip"),
        failure_budget=FailureBudget(max_failed=3),
        rollout_kwargs={"n": [1, None, "é"]},
    )
    assert job_spec_from_bytes(job_spec_bytes(written)) == written


def test_a_literal_key_is_never_stored():
    """The stored spec is read by everybody who may read the output."""
    with pytest.raises(ConfigError, match="cannot be stored") as caught:
        job_spec_bytes(spec(config=config(api_key="s3cr3t")))
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b'{"job_id": "x"}', b'{"sauce": ["x"]}', b"\xff"])
def test_bytes_that_are_no_spec_are_a_config_error(data):
    """A torn or foreign spec ends the job with exit code 2."""
    with pytest.raises(ConfigError):
        job_spec_from_bytes(data)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"source": []}, "source"),
        ({"rollout": None}, "either rollout"),
        ({"prompt_template": "{text}"}, "either rollout"),
        ({"system_prompt": "Be brief."}, "system_prompt"),
        ({"rollout": "function"}, "rollout"),
        ({"shared_context": "module:"}, "shared_context"),
        ({"rank": 1}, "rank"),
        ({"metadata_key": "text"}, "metadata_key"),
        ({"records_per_chunk": 0}, "records_per_chunk"),
        ({"output_format": "csv"}, "output_format"),
        ({"config": 3}, "config"),
        ({"config": {"server_type": "dummy", "model": "m"}}, "no parameter 'model'"),
    ],
)
def test_a_wrong_spec_is_refused(changes, told):
    """Rules across fields hold at construction too."""
    with pytest.raises(ConfigError, match=told):
        spec(**changes)


def test_a_config_may_be_given_as_a_dict():
    """A DAG may hold plain JSON."""
    assert spec(config={"server_type": "dummy", "model_name_or_path": "tiny"}).config == config()


def test_the_state_lives_below_the_output_unless_told_otherwise():
    """One folder is enough to find a run again."""
    assert spec(output="s3://b/out/").checkpoints_uri == "s3://b/out/_rollout"
    assert spec(checkpoints="s3://b/state").checkpoints_uri == "s3://b/state"
