"""What a rollout task tells OpenLineage.

Receives: where the task read and wrote, which model it asked, what came of it.        Hands on: an OperatorLineage.
Invariants: nothing of OpenLineage is imported before Airflow's OpenLineage provider asks; a glob is told as the folder before its first
wildcard, for lineage joins datasets by name.
Source: the naming of datasets in OpenLineage's specification (s3://bucket and key, gs://bucket and key, ``file`` and path).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["dataset_name", "lineage_of"]

_COUNTS = (
    "documents_in", "documents_written", "documents_failed", "documents_dropped", "requests_sent", "cache_hits", "prompt_tokens",
    "completion_tokens", "resumed",
)  # fmt: skip


def dataset_name(uri: str) -> tuple[str, str]:
    """Namespace and name of the dataset at a URI."""
    stems = [uri.partition(wildcard)[0] for wildcard in "*?["]
    stem = min(stems, key=len)
    if stem != uri:
        stem = stem.rpartition("/")[0]
    scheme, separator, rest = stem.partition("://")
    if not separator or scheme == "file":
        return "file", (rest if separator else stem).rstrip("/") or "/"
    bucket, _, key = rest.partition("/")
    return f"{'s3' if scheme == 's3a' else scheme}://{bucket}", key.rstrip("/") or "/"


def lineage_of(
    *, source: Iterable[str], output: str, model: str, server_type: str, result: Mapping[str, Any] | None
) -> Any:
    """The lineage of a task that has ended.

    Args:
        source: what was read.
        output: where was written.
        model: which model answered.
        server_type: how it was served.
        result: what the task returned; None when it failed.
    """
    from airflow.providers.common.compat.openlineage.facet import (  # noqa: PLC0415 - only where OpenLineage is
        InputDataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415 - see above

    counts = {name: result[name] for name in _COUNTS if name in result} if result else {}
    statistics: dict[str, Any] = {}
    if result:
        statistics["outputStatistics"] = OutputStatisticsOutputDatasetFacet(
            rowCount=result["documents_written"], size=result.get("output_bytes")
        )
    facet = _run_facet()(
        model=model,
        serverType=server_type,
        fingerprint=result["fingerprint"] if result else None,
        rank=result["rank"] if result else None,
        counts=counts,
    )
    return OperatorLineage(
        inputs=[InputDataset(*name) for name in sorted({dataset_name(uri) for uri in source})],
        outputs=[OutputDataset(*dataset_name(output), outputFacets=statistics)],
        run_facets={"rollout": facet},
    )


@functools.cache
def _run_facet() -> Any:
    import attrs  # noqa: PLC0415 - comes with OpenLineage
    from airflow.providers.common.compat.openlineage.facet import RunFacet  # noqa: PLC0415 - see lineage_of

    fields = {
        "model": attrs.field(),
        "serverType": attrs.field(),
        "fingerprint": attrs.field(),
        "rank": attrs.field(),
        "counts": attrs.field(),
    }
    return attrs.make_class("RolloutRunFacet", fields, bases=(RunFacet,), kw_only=True)
