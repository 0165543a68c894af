"""How a run is told to stop."""

from airflow_provider_rollout.engine.exceptions import JobCancelledError, JobInterruptedError
from airflow_provider_rollout.engine.stop import Stop

SIGNAL, CANCEL = JobInterruptedError("signal"), JobCancelledError("cancel")


def test_the_first_request_gives_grace_and_the_second_takes_it():
    """Ctrl-C twice ends at once."""
    stop = Stop()
    stop.ask(SIGNAL, 10.0)
    assert (stop.error, stop.grace_s, stop.asked.is_set()) == (SIGNAL, 10.0, True)
    stop.ask(JobInterruptedError("again"), 10.0)
    assert (stop.error, stop.grace_s) == (SIGNAL, 0.0)


def test_a_cancel_outweighs_a_signal_and_no_signal_a_cancel():
    """The record says who ended the job."""
    stop = Stop()
    stop.ask(SIGNAL, 10.0)
    stop.ask(CANCEL, 0.0)
    stop.ask(SIGNAL, 10.0)
    assert (stop.error, stop.grace_s) == (CANCEL, 0.0)
