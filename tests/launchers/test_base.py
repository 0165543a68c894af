"""Finding a launcher by its name."""

import pytest

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.launchers.base import Launch, launcher_named
from airflow_provider_rollout.launchers.process import ProcessLauncher


def test_the_process_launcher_is_found_by_its_name():
    """The name stands in connections and in handles."""
    assert isinstance(launcher_named("process"), ProcessLauncher)
    assert ProcessLauncher.name == "process"


def test_an_unknown_launcher_is_named_together_with_the_known_ones():
    """A typo in a connection is told to whoever uses it."""
    with pytest.raises(ConfigError, match=r"no launcher 'slurm'.*known is process"):
        launcher_named("slurm")


def test_a_launch_does_not_show_its_secrets():
    """Its environment holds keys."""
    launch = Launch(job_id="j", rank=0, checkpoints="/c", spec_uri="/c/s.json", environment={"ROLLOUT_API_KEY": "sk-1"})
    assert "sk-1" not in repr(launch)
