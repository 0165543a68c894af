"""Two hundred tasks that wait for jobs from the start, without a worker, and probes of the triggerer's loop beside them."""

import json
import os
from datetime import timedelta

from airflow.sdk import DAG, BaseOperator
from airflow.triggers.base import StartTriggerArgs

WATCHED = os.environ["ROLLOUT_WATCHED"]
PID, CREATE_TIME = json.loads(os.environ["ROLLOUT_WATCHED_PROCESS"])
TRIGGERS, PER_DAG, JOB_ID = 200, 10, "job-1"


class StartsInTriggerer(BaseOperator):
    """Deferred by the scheduler."""

    start_from_trigger = True

    def __init__(self, *, trigger_class, arguments, **kwargs):
        super().__init__(**kwargs)
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=trigger_class,
            trigger_kwargs=arguments,
            next_method="execute_complete",
            next_kwargs=None,
            timeout=timedelta(hours=1),
        )

    def execute_complete(self, context, event):
        """Nothing is left to do."""


def waiting_for(number: int) -> dict:
    """The arguments of an InferenceTrigger, as InferenceOperator gives them."""
    from airflow_provider_rollout.engine.storage.attempt import this_process

    checkpoints, here = f"{WATCHED}/{number}", this_process()
    handle = {
        "launcher": "process",
        "job_id": JOB_ID,
        "rank": 0,
        "checkpoints": checkpoints,
        "log_path": f"{checkpoints}/job.log",
    }
    handle |= {"host": here.host, "boot_id": here.boot_id, "pid": PID, "create_time": CREATE_TIME}
    job = {"job_id": JOB_ID, "rank": 0, "checkpoints": checkpoints, "handle": handle}
    tags = {"dag_id": "many", "task_id": f"watch_{number}"}
    more = {"vllm_conn_id": "model", "aws_conn_id": "store", "poll_interval": 5.0, "cancel_on_kill": False}
    return {"job": {**job, "tags": tags}, **more}


# A task that starts in the triggerer takes its whole DAG along: many small DAGs, not a large one.
for first in range(0, TRIGGERS, PER_DAG):
    with DAG(f"many_{first}", schedule=None):
        for number in range(first, first + PER_DAG):
            StartsInTriggerer(
                task_id=f"watch_{number}",
                trigger_class="airflow_provider_rollout.triggers.inference.InferenceTrigger",
                arguments=waiting_for(number),
            )

with DAG("probe", schedule=None):
    StartsInTriggerer(
        task_id="measure",
        trigger_class="loop_probe.LoopProbe",
        arguments={"folder": f"{WATCHED}/probe"},
    )
