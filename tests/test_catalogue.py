"""The catalogue of faults: what users of such systems have reported (U), and where datatrove's InferenceRunner falls short (D).

Each line is a scenario, and below it stand the tests that play it, or why it cannot come up here. The table is read by a test: a
scenario without a test, or a test that is gone, fails it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent

# Numbers that are left out were never given.
USERS = {
    *{
        1,
        2,
        3,
        5,
        6,
        7,
        9,
        10,
        11,
        12,
        14,
        15,
        16,
        17,
        19,
        20,
        21,
        22,
        24,
        25,
        26,
        27,
        28,
        31,
        32,
        33,
        34,
        35,
        37,
        38,
        39,
    },
    *{41, 42, 43, 46, 47, 48, 49, 50, 53, 54, 55, 56, 58, 59, 60, 61, 62, 63, 64, 66, 67, 68, 69, 70},
}
DATATROVE = set(range(1, 48))

CATALOGUE = """
U1 a resume skips as many as were done, although results end in any order
    resume/test_resume_identity.py::test_a_resume_asks_what_is_missing_and_only_that
U2 a torn last record is glued to the next one
    resume/test_resume_identity.py::test_a_resume_asks_what_is_missing_and_only_that
    engine/storage/test_segment.py::test_a_torn_segment_is_never_misread
U3 a torn tail that is no UTF-8
    resume/test_resume_identity.py::test_a_resume_asks_what_is_missing_and_only_that
U5 a cache without the model in its key hands out another model's answers
    resume/test_resume_identity.py::test_another_model_takes_nothing_from_what_the_first_has_left
U6 a cache key without the generation parameters
    engine/test_generate.py::test_what_changes_the_answer_changes_the_key
U7 the payload is changed between look-up and store
    engine/test_generate.py::test_any_payload_is_found_again_and_left_as_it_is
U9 a restart with a cache hangs for ever
    resume/test_resume_identity.py::test_done_chunks_stay_byte_for_byte_and_a_resume_ends
U10 a restart overwrites the earlier results
    resume/test_resume_identity.py::test_done_chunks_stay_byte_for_byte_and_a_resume_ends
U11 ids that repeat, rows without ids
    resume/test_kill_and_resume.py::test_ten_kills_change_nothing
    engine/storage/test_row_decoder.py::test_rows_without_an_id_get_the_hash_of_their_content
U12 the status of ten thousand chunks does not fit a command line
    engine/test_run_state.py::test_a_status_reads_no_chunk_however_many_there_are
U14 one prompt over the context length ends a job of millions
    resume/test_server_faults.py::test_of_a_thousand_documents_only_those_fail_that_must
    system/test_vllm.py::test_the_job_starts_the_server_and_stops_it
U15 "max_tokens must be at least 1": a permanent error, by its status and not by its words
    engine/serving/test_retry.py::test_another_4xx_is_permanent
    engine/serving/test_retry.py::test_the_type_of_an_error_decides_and_never_its_text
U16 one request kills the engine for all
    engine/serving/test_base.py::test_a_request_that_kills_servers_is_quarantined_and_the_rest_is_answered
U17 one prompt always gets 500
    engine/serving/test_base.py::test_a_prompt_that_always_gets_500_fails_alone_and_no_server_is_restarted
U19 a row that is JSON but no object, or no UTF-8, aborts the file
    engine/storage/test_row_decoder.py::test_a_bad_row_ends_the_job_and_is_named
    engine/test_runner.py::test_bad_rows_end_the_job_or_are_counted
U20 all requests fail from some row on
    engine/test_failure_policy.py::test_failures_in_a_row_end_the_job_with_their_causes
    engine/test_runner.py::test_the_budget_ends_the_job_with_the_causes
U21 one of several engines dies and the job stops
    engine/serving/test_base.py::test_one_of_two_replicas_dies_and_the_job_goes_on
    engine/serving/test_dispatch.py::test_an_endpoint_that_dies_and_comes_back_is_left_and_used_again
U22 the engine is frozen, /health and /v1/models answer 200
    resume/test_server_faults.py::test_a_server_that_answers_health_and_no_request_is_replaced_in_time
    engine/serving/test_dispatch.py::test_an_endpoint_that_hangs_is_left_although_it_answers_models
U24 no new request is served, and there is no error
    resume/test_server_faults.py::test_a_server_that_answers_health_and_no_request_is_replaced_in_time
U25 a client timeout takes away the longest generations
    engine/serving/test_client.py::test_request_timeout_is_kept_and_none_waits
    engine/serving/test_dispatch.py::test_one_long_generation_is_no_hang
U26 given up, aborted and sent again without end
    engine/serving/test_dispatch.py::test_one_bad_request_fails_alone_after_bounded_attempts
U27 the server goes on generating after the client has left
    engine/serving/test_client.py::test_a_cancelled_request_closes_its_connection
U28 bursts bring the engine down
    engine/serving/test_dispatch.py::test_adaptive_concurrency_settles_below_what_the_server_bears
    engine/serving/test_window_throughput.py::test_an_adaptive_window_settles_at_nine_tenths_of_the_servers_best
U31 connections are reset when all prompts are sent at once
    engine/serving/test_dispatch.py::test_a_burst_beyond_the_backlog_of_the_server_is_answered_all_the_same
U32 null content, reasoning only, cut at the limit
    engine/test_runner_shapes.py::test_what_was_cut_at_the_limit_is_marked_or_refused
    engine/serving/test_dispatch.py::test_a_truncated_answer_is_kept_failed_or_asked_again
U33 the answer lands in reasoning_content
    engine/serving/test_wire.py::test_an_odd_answer_is_still_an_answer
U34 finish_reason is null
    engine/test_runner_shapes.py::test_every_shape_of_an_answer_ends_as_a_row_or_as_a_dead_letter
U35 NaN and nulls in logprobs
    engine/serving/test_wire.py::test_nan_in_logprobs_becomes_null
    engine/test_runner_shapes.py::test_every_shape_of_an_answer_ends_as_a_row_or_as_a_dead_letter
U37 tool calls without content
    engine/test_runner_shapes.py::test_every_shape_of_an_answer_ends_as_a_row_or_as_a_dead_letter
U38 a lone surrogate, anywhere
    engine/test_runner.py::test_odd_values_are_written_and_read_back_strict
    engine/serving/test_wire.py::test_a_lone_surrogate_and_a_huge_integer_can_be_sent
U39 records are cut at U+2028 and its like
    engine/storage/test_shard_rows.py::test_only_a_line_feed_ends_a_line
    engine/storage/test_output.py::test_odd_characters_are_written
U41 S3 says SlowDown, also inside a 200
    engine/storage/test_store_errors.py::test_every_request_outlives_a_struggling_store
    engine/storage/test_store_errors.py::test_a_multipart_upload_is_whole_or_not_there
U42 an incomplete upload that nobody notices
    engine/storage/test_store_errors.py::test_a_multipart_upload_is_whole_or_not_there
    engine/test_reopen.py::test_an_output_object_that_is_not_the_committed_one_is_not_taken_for_it
U43 credentials end in mid-chunk
    engine/storage/test_store_errors.py::test_expired_credentials_are_asked_for_again
    resume/test_assumed_role.py::test_the_job_assumes_the_role_itself_and_stores_no_secret
U46 a cut .gz, an empty one, one of two members, one that is plain text
    engine/storage/test_shard_rows.py::test_a_torn_or_mislabelled_shard_is_an_error
    engine/storage/test_shard_reader.py::test_a_shard_of_zero_bytes_is_empty_and_told
U47 SQLite on a network file system: locked, corrupt, read-only
    resume/test_store_faults.py::test_scratch_that_cannot_be_written_is_not_used
    engine/storage/test_request_cache.py::test_a_scratch_folder_that_cannot_be_used_is_named
U48 a state file that a crash has cut short
    engine/storage/test_checkpoint.py::test_a_record_that_cannot_be_trusted_is_an_error
    engine/storage/test_pinned.py::test_an_unreadable_pin_is_an_error
U49 the disk is full
    resume/test_store_faults.py::test_a_full_scratch_disk_ends_the_job_and_the_next_one_resumes
    engine/storage/test_object_store.py::test_a_full_disk_is_named_and_leaves_the_old_object
U50 rows with other keys, other types, null first
    engine/storage/test_output.py::test_deviating_rows_do_not_change_the_schema
U53 a schema that changes late overwrites earlier rows
    engine/storage/test_output.py::test_deviating_rows_do_not_change_the_schema
U54 engine processes outlive a killed job and hold the GPU
    engine/serving/test_guard.py::test_kill_9_of_the_job_leaves_nothing
    engine/serving/test_base.py::test_kill_9_of_the_job_leaves_no_server
    system/test_vllm.py::test_a_killed_job_leaves_no_server_and_resumes
U55 starts at the same time corrupt the compile cache
    engine/serving/test_vllm.py::test_replicas_have_a_compile_cache_each
    engine/serving/test_base.py::test_a_start_that_a_corrupt_compile_cache_spoils_succeeds_with_an_empty_one
U56 a flag that the server no longer knows
    engine/serving/test_base.py::test_an_unknown_flag_is_reported_at_once
U58 a process that cannot be killed
    engine/serving/test_base.py::test_a_server_that_cannot_be_killed_ends_the_job_and_gets_no_neighbour
U59 a worker's SIGTERM deletes what a retry could have found again
    operators/test_execution.py::test_a_machine_that_goes_away_leaves_the_job_and_a_person_ends_it
U60 on_kill is not called for deferred tasks
    triggers/test_inference.py::test_a_kill_stops_the_job
U61 the job succeeded, the hand-back failed, and every retry fails alike
    operators/test_work.py::test_a_success_that_never_reached_airflow_is_taken_without_a_new_job
U62 tasks stay deferred although the work is done
    hooks/test_watch.py::test_the_deadline_cancels_the_job
    triggers/test_inference.py::test_two_triggerers_may_watch_the_same_job
U63 a trigger blocks its triggerer
    triggers/test_inference.py::test_a_trigger_does_not_block_the_loop_of_the_triggerer
U64 a large XCom fails after the work is done
    operators/test_finish.py::test_the_result_is_small_however_large_the_run
U66 two copies of a task at once
    resume/test_kill_and_resume.py::test_of_two_jobs_at_once_one_works_and_the_other_says_which
    resume/test_kill_and_resume.py::test_a_zombie_is_fenced_and_changes_nothing
U67 parameters too large for what carries them
    operators/test_work.py::test_a_first_try_starts_a_job_that_does_the_work
    Airflow carries the URI of a stored spec; the spec itself has no bound that it could meet.
U68 a metric for each id
    hooks/test_report.py::test_counters_grow_by_what_is_new
U69 one bad line sets the sum of tokens to zero
    engine/test_finish_chunk.py::test_counts_rows_and_dead_letters_agree
U70 a watcher gives up on a healthy job that goes on and costs
    hooks/test_watch.py::test_five_failed_looks_in_a_row_end_the_watch_and_not_the_job
    operators/test_execution.py::test_a_deferred_task_hands_its_job_to_the_trigger_and_takes_the_event_back

D1 an error while saving is swallowed, and the document counts as done
    resume/test_store_faults.py::test_a_store_that_stays_away_ends_the_job_and_the_next_one_resumes
    engine/test_runner.py::test_odd_values_are_written_and_read_back_strict
D2 an upload that fails is swallowed: a whole chunk is missing
    resume/test_store_faults.py::test_a_store_that_stays_away_ends_the_job_and_the_next_one_resumes
D3 one row of another type loses its batch
    engine/storage/test_output.py::test_deviating_rows_do_not_change_the_schema
D4 ids that repeat close chunks early and truncate them
    resume/test_kill_and_resume.py::test_ten_kills_change_nothing
    engine/test_runner.py::test_failed_documents_are_asked_again_on_request_and_nothing_else_is
D5 another records_per_chunk loses documents
    engine/test_runner_ends.py::test_chunks_of_another_size_are_refused
D6 an empty state file fails every later run; records are deleted before the state is saved
    engine/storage/test_attempt.py::test_an_unreadable_record_is_an_error_and_not_an_absent_one
    engine/storage/test_checkpoint.py::test_what_a_dead_attempt_left_of_a_chunk_is_replaced
D7 a document that speaks of a bad request is taken for one
    engine/serving/test_dispatch.py::test_one_bad_request_fails_alone_after_bounded_attempts
D8 bytes of media, integers as keys, NaN
    engine/storage/test_output.py::test_media_are_written_with_their_bytes
    engine/test_strict_json.py::test_what_json_lacks_has_a_form
D9 documents with empty text are dropped on resume
    resume/test_resume_identity.py::test_a_resume_asks_what_is_missing_and_only_that
D10 a None ends the input; bad lines are skipped
    engine/test_document_feed.py::test_what_is_no_document_ends_the_block
    engine/storage/test_row_decoder.py::test_a_bad_row_ends_the_job_and_is_named
D11 metadata decide about names of files
    engine/storage/test_layout.py::test_an_output_object_is_named_as_in_datatrove
    Names are made of rank and chunk alone.
D12 the cache key is taken before model and defaults
    engine/test_generate.py::test_what_changes_the_answer_changes_the_key
D13 the user's payload is changed by the call
    engine/test_runner.py::test_two_identical_calls_are_two_requests_and_a_reused_payload_is_not_edited
D14 two equal calls are one sample on replay
    engine/test_generate.py::test_a_replay_asks_nothing_and_gives_the_same_answers
D15 a cached 400 is final, though the server was mended
    engine/test_runner.py::test_failed_documents_are_asked_again_on_request_and_nothing_else_is
D16 integers beyond 64 bits and lone surrogates fail with checkpoints only
    engine/test_generate.py::test_any_payload_is_found_again_and_left_as_it_is
    engine/serving/test_wire.py::test_a_lone_surrogate_and_a_huge_integer_can_be_sent
D17 a slow cache with an unbounded queue, lost at close
    engine/storage/test_request_cache.py::test_rows_become_durable_without_being_asked_to
    engine/storage/test_request_cache.py::test_a_full_segment_does_not_wait_for_the_interval
D18 failures of the cache are only logged; a corrupt file fails every start
    engine/storage/test_request_cache.py::test_a_full_disk_is_an_error_that_says_so
    engine/storage/test_request_cache.py::test_a_damaged_segment_is_skipped_and_the_others_are_used
D19 prompts and images in logs and in the cache's errors
    engine/serving/test_wire.py::test_a_refusal_holds_the_servers_words_but_not_the_prompt
    resume/test_server_faults.py::test_of_a_thousand_documents_only_those_fail_that_must
D20 the cache serves crash replay alone
    engine/storage/test_request_cache.py::test_segments_go_when_all_their_chunks_are_committed
    So does ours, on purpose: two runs are two sets of samples, and what is committed needs no cache.
D21 429, 502 … end the job after one call
    engine/serving/test_dispatch.py::test_a_passing_refusal_is_retried
D22 a connection that closes without an answer ends the job
    engine/serving/test_dispatch.py::test_a_broken_connection_is_retried
D23 the second attempt finds its payload changed
    engine/serving/test_wire.py::test_the_payload_is_not_edited_and_streaming_is_off
D24 no choices, no usage, no message, HTML: each ends the job
    engine/test_runner_shapes.py::test_every_shape_of_an_answer_ends_as_a_row_or_as_a_dead_letter
D25 the back-off holds a slot, has no jitter, and comes after the last try too
    engine/serving/test_dispatch.py::test_a_wait_before_a_retry_holds_no_slot
    engine/serving/test_retry.py::test_the_wait_grows_and_is_jittered_over_its_whole_length
    engine/serving/test_retry.py::test_the_last_attempt_is_followed_by_no_wait
D26 a frozen engine is waited for without end
    resume/test_server_faults.py::test_a_server_that_answers_health_and_no_request_is_replaced_in_time
    engine/serving/test_watchdog.py::test_requests_that_a_living_server_has_forgotten_are_not_waited_for_without_end
D27 no failure budget, no dead letters
    engine/test_failure_policy.py::test_one_failure_over_the_number_ends_the_job
    resume/test_server_faults.py::test_of_a_thousand_documents_only_those_fail_that_must
D28 one failed rollout drops its siblings
    engine/test_runner.py::test_one_failed_rollout_does_not_take_its_siblings_along
D29 an error is noticed when the next document comes
    engine/test_runner_ends.py::test_an_error_ends_the_job_though_its_input_is_slow
D30 a 400 of another make; reasoning, tool calls, logprobs and n > 1 are dropped; cut counts as good
    engine/test_runner_shapes.py::test_several_choices_are_one_result_with_all_of_them
    engine/test_runner_shapes.py::test_every_shape_of_an_answer_ends_as_a_row_or_as_a_dead_letter
    engine/serving/test_retry.py::test_another_4xx_is_permanent
D31 the server's log decides that it is dead
    engine/serving/test_base.py::test_what_a_server_writes_to_its_log_decides_nothing
D32 no restart; one try too few or too many; readiness of endpoints
    engine/serving/test_base.py::test_a_server_that_dies_mid_run_is_replaced_and_its_requests_replayed
    engine/serving/test_base.py::test_a_server_that_dies_at_its_start_is_started_again_so_often
    engine/serving/test_endpoint.py::test_a_server_that_is_still_loading_is_waited_for
D33 readiness without the key, and at another path than the requests
    engine/serving/test_client.py::test_the_url_works_with_and_without_v1
    engine/serving/test_dispatch.py::test_wrong_credentials_are_found_before_the_first_request
D34 a connection per request; query strings and chunked answers
    engine/serving/test_client.py::test_connections_are_used_again
    engine/serving/test_client.py::test_a_body_without_a_length_and_one_in_chunks_are_whole
    engine/serving/test_client.py::test_the_base_is_found_with_and_without_v1
D35 SIGTERM leaves the server alive
    resume/test_server_faults.py::test_a_stop_is_bounded_whatever_the_server_does
D36 another server on the port is taken for ours
    engine/serving/test_base.py::test_a_foreign_server_is_not_taken_for_ours
D37 remote code by default, open to the network, without a key
    engine/serving/test_vllm.py::test_the_defaults_are_safe
    engine/serving/test_base.py::test_a_server_starts_serves_and_is_gone_after_the_block
D38 a lock around the compile cache that blocks the loop
    engine/serving/test_vllm.py::test_replicas_have_a_compile_cache_each
    There is no lock: each replica has a cache of its own.
D39 writes and sleeps on the event loop
    engine/storage/test_object_store.py::test_the_event_loop_runs_on_during_a_write
D40 the caller's config is changed
    engine/serving/test_base.py::test_a_custom_server_gets_its_port_and_may_serve_without_a_key
    engine/test_config.py::test_a_config_cannot_be_changed
D41 one server per rank, no balancing, and a resume reads all again
    engine/serving/test_dispatch.py::test_requests_go_to_the_endpoint_with_the_fewest_in_flight
    engine/storage/test_input_plan.py::test_few_shards_are_split_so_that_every_rank_has_work
    engine/storage/test_shard_reader.py::test_a_resume_on_s3_reads_only_what_follows
D42 rows in the order in which they ended; final names while open; no manifest
    resume/test_kill_and_resume.py::test_ten_kills_change_nothing
    engine/storage/test_manifest.py::test_the_last_rank_finishes_the_run_whichever_it_is
D43 two attempts append to the same files
    resume/test_kill_and_resume.py::test_of_two_jobs_at_once_one_works_and_the_other_says_which
    engine/storage/test_checkpoint.py::test_a_fenced_attempt_commits_nothing
D44 gauges that drift
    engine/test_metrics.py::test_a_gauge_falls_back_when_its_block_fails
    engine/serving/test_dispatch.py::test_a_cancelled_request_leaves_no_count_and_no_slot
D45 metrics in the log only; replays without tokens; a tail that stays for ever
    hooks/test_report.py::test_counters_grow_by_what_is_new
    engine/test_generate.py::test_a_replay_asks_nothing_and_gives_the_same_answers
    resume/test_resume_identity.py::test_done_chunks_stay_byte_for_byte_and_a_resume_ends
D46 a torn tail is merged with what comes next, and made again at the resume after
    resume/test_resume_identity.py::test_a_resume_asks_what_is_missing_and_only_that
D47 no check of the numbers in the config
    engine/test_config.py::test_a_wrong_value_is_refused_with_the_name_of_its_field
"""

LINE = re.compile(r"^([UD]\d+) ")
TEST = re.compile(r"^    ([\w/]+\.py)::(test_\w+)$")


def entries() -> dict[str, list[str]]:
    """What stands below each scenario."""
    below: dict[str, list[str]] = {}
    name = ""
    for line in filter(None, CATALOGUE.splitlines()):
        if match := LINE.match(line):
            name = match[1]
            assert name not in below, f"{name} is there twice"
            below[name] = []
        else:
            below[name].append(line)
    return below


def test_every_scenario_has_a_test():
    """No line of the catalogue is left out."""
    expected = {f"U{number}" for number in USERS} | {f"D{number}" for number in DATATROVE}
    assert set(entries()) == expected
    assert [name for name, lines in entries().items() if not any(TEST.match(line) for line in lines)] == []


def test_every_test_of_the_catalogue_exists():
    """By its file and name; a test that is renamed is renamed here too."""
    named = {match.groups() for lines in entries().values() for line in lines if (match := TEST.match(line))}
    missing = []
    for file, test in sorted(named):
        path = TESTS / file
        body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
        functions = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        missing += [] if test in functions else [f"{file}::{test}"]
    assert missing == []
