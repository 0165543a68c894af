"""The input plan: what sources name, how shards are split, and how changes are told."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers.seaweedfs import S3Server

from airflow_provider_rollout.engine.exceptions import ShardError, StoreError
from airflow_provider_rollout.engine.storage.input_plan import (
    InputPlan,
    Part,
    Shard,
    ShardFormat,
    _split,
    changed_shards,
    make_plan,
    shard_format,
)
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

FILES = [
    "a.jsonl",
    "b.jsonl.gz",
    "deep/c.parquet",
    "deep/er/d.csv.zst",
    "deep/er/e[1].jsonl",
    "_rollout/failed/x.jsonl",
    "deep/.hidden/y.jsonl",
    "deep/_z.jsonl",
    "README.md",
    "sp ace+%20/ü.tsv",
]
DATA = [
    "a.jsonl",
    "b.jsonl.gz",
    "deep/c.parquet",
    "deep/er/d.csv.zst",
    "deep/er/e[1].jsonl",
    "sp ace+%20/ü.tsv",
]


@pytest.fixture
async def root(store_uri: str) -> str:
    """A place with the files above."""
    store = ObjectStore.open(store_uri)
    for name in FILES:
        await store.put(name, b"{}\n")
    return store.uri


async def _names(root: str, *sources: str) -> list[str]:
    plan = await make_plan([f"{root}/{source}" for source in sources], 1)
    return [shard.uri.removeprefix(f"{root}/") for shard in plan.shards]


async def test_a_folder_is_all_data_files_below_it(root: str) -> None:
    """Sorted, without hidden names and without what is no data."""
    assert await _names(root, "") == DATA
    assert await _names(root, "deep/") == [name for name in DATA if name.startswith("deep")]
    assert await _names(root, "deep") == [name for name in DATA if name.startswith("deep")]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jsonl", ["a.jsonl"]),
        ("*.jsonl*", ["a.jsonl", "b.jsonl.gz"]),
        ("?.jsonl", ["a.jsonl"]),
        ("[ab].jsonl*", ["a.jsonl", "b.jsonl.gz"]),
        ("[!a].jsonl*", ["b.jsonl.gz"]),
        ("**/*.jsonl", ["a.jsonl", "deep/er/e[1].jsonl"]),
        ("deep/**", ["deep/c.parquet", "deep/er/d.csv.zst", "deep/er/e[1].jsonl"]),
        ("*/*/*.zst", ["deep/er/d.csv.zst"]),
        ("deep/**/c.parquet", ["deep/c.parquet"]),
        ("_rollout/**/*.jsonl", ["_rollout/failed/x.jsonl"]),
        ("deep/_*.jsonl", ["deep/_z.jsonl"]),
        ("sp ace+%20/*", ["sp ace+%20/ü.tsv"]),
        ("deep/er/e[1].jsonl", ["deep/er/e[1].jsonl"]),
    ],
)
async def test_globs(root: str, pattern: str, names: list[str]) -> None:
    """A star stays within a name, two stars cross folders, a name that exists is no glob."""
    assert await _names(root, pattern) == names


async def test_a_shard_is_read_once(root: str) -> None:
    """However often the sources name it."""
    assert await _names(root, "a.jsonl", "*.jsonl", "a.jsonl") == ["a.jsonl"]


@pytest.mark.parametrize("source", ["absent.jsonl", "absent/", "*.none", "deep/er/f[1].jsonl", "nothing/**"])
async def test_a_source_that_names_nothing_is_an_error(root: str, source: str) -> None:
    """A typing error never becomes an empty run; the error names the source."""
    with pytest.raises(ShardError, match="no such file") as caught:
        await make_plan([f"{root}/a.jsonl", f"{root}/{source}"], 1)
    assert f"{root}/{source}" in str(caught.value)


@pytest.mark.parametrize("source", ["README.md", "*"])
async def test_an_unknown_format_is_an_error(root: str, source: str) -> None:
    """What was named is not passed over in silence."""
    with pytest.raises(ShardError, match=r"README\.md: unknown format"):
        await make_plan([f"{root}/{source}"], 1)


async def test_a_plan_is_stable_and_notices_changes(root: str) -> None:
    """Equal twice; every change of the data is told, with the name of the shard."""
    store = ObjectStore.open(root)
    pinned = await make_plan([root], 2)
    again = await make_plan([root], 2)
    assert pinned == again
    assert pinned.digest() == again.digest()
    assert changed_shards(pinned, again) == []
    await store.put("a.jsonl", b'{"text": "longer"}\n')
    await store.put("b.jsonl.gz", b"[]\n")
    await store.delete(["deep/c.parquet"])
    await store.put("new.jsonl", b"")
    now = await make_plan([root], 2)
    assert changed_shards(pinned, now) == [
        f"{root}/a.jsonl has changed from 3 to 19 bytes",
        f"{root}/b.jsonl.gz has been written again since the plan was made",
        f"{root}/deep/c.parquet is gone",
        f"{root}/new.jsonl is new",
    ]
    assert now.digest() != pinned.digest()


async def test_the_same_file_written_again_has_changed(tmp_path: Path) -> None:
    """Same size, another modification time."""
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n")
    pinned = await make_plan([str(file)], 1)
    os.utime(file, ns=(0, 12345))
    assert changed_shards(pinned, await make_plan([str(file)], 1)) == [
        f"{file} has been written again since the plan was made"
    ]


async def test_a_plan_survives_its_json_form(root: str) -> None:
    """And refuses a field that it does not know."""
    plan = await make_plan([root], 3)
    data = msgspec.json.encode(plan)
    assert msgspec.json.decode(data, type=InputPlan) == plan
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data[:-1] + b',"extra":1}', type=InputPlan)


async def test_relative_paths_and_file_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They become absolute, so that a resume from elsewhere finds the same shards."""
    (tmp_path / "a b.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    for source in ("a b.jsonl", "./a b.jsonl", f"file://{tmp_path}/a%20b.jsonl", "*.jsonl"):
        assert [shard.uri for shard in (await make_plan([source], 1)).shards] == [str(tmp_path / "a b.jsonl")]


@pytest.mark.s3
async def test_a_missing_bucket_is_not_an_empty_source(s3: S3Server) -> None:
    """The store's error, not "no such file"."""
    for source in ("s3://no-such-bucket/a.jsonl", "s3://no-such-bucket/", "s3://no-such-bucket/*.jsonl"):
        with pytest.raises(StoreError, match="bucket does not exist"):
            await make_plan([source], 1, s3.options())


@pytest.mark.s3
async def test_a_whole_bucket_can_be_a_source(s3: S3Server) -> None:
    """Keys at the top of a bucket, and an empty object that a console made for a folder."""
    bucket = s3.new_bucket()
    store = ObjectStore.open(f"s3://{bucket}", s3.options())
    await store.put("top.jsonl", b"{}")
    for source in (f"s3://{bucket}", f"s3://{bucket}/", f"s3a://{bucket}/*", f"s3://{bucket}/**"):
        plan = await make_plan([source], 1, s3.options())
        assert [shard.uri for shard in plan.shards] == [f"s3://{bucket}/top.jsonl"]


def _parquet(path: Path, rows: int, rows_per_group: int) -> None:
    pq.write_table(pa.table({"text": [str(row) for row in range(rows)]}), path, row_group_size=rows_per_group)


async def test_few_shards_are_split_so_that_every_rank_has_work(tmp_path: Path) -> None:
    """In proportion to size; compressed files and CSV stay whole."""
    (tmp_path / "a.jsonl").write_bytes(b"x" * 3000)
    (tmp_path / "b.jsonl.gz").write_bytes(b"x" * 9000)
    (tmp_path / "c.csv").write_bytes(b"x" * 9000)
    _parquet(tmp_path / "d.parquet", 100, 100)
    plan = await make_plan([str(tmp_path)], 8)
    assert len(plan.parts) == 8
    assert all(len(plan.parts_of(rank)) == 1 for rank in range(8))
    assert [part for part in plan.parts if part.shard_index in {1, 2}] == [Part(1), Part(2)]
    rows = [part for part in plan.parts if part.shard_index == 3]
    assert (rows[0].start, rows[-1].end) == (0, 100)
    assert [part.start for part in rows[1:]] == [part.end for part in rows[:-1]]


async def test_shards_that_cannot_be_split_leave_ranks_without_work(tmp_path: Path) -> None:
    """Rank 2 of 3 has no part, which is no error."""
    for name in ("a.csv", "b.jsonl.gz"):
        (tmp_path / name).write_bytes(b"x")
    plan = await make_plan([str(tmp_path)], 3)
    assert [plan.parts_of(rank) for rank in range(3)] == [[Part(0)], [Part(1)], []]


async def test_enough_shards_stay_whole(tmp_path: Path) -> None:
    """Shard i belongs to rank i % world_size."""
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_bytes(b"x" * 100)
    plan = await make_plan([str(tmp_path)], 2)
    assert plan.parts == [Part(number) for number in range(5)]
    assert [part.shard_index for part in plan.parts_of(1)] == [1, 3]


async def test_a_torn_parquet_file_is_an_error_of_the_plan(tmp_path: Path) -> None:
    """When it is to be split; the error names it."""
    file = tmp_path / "a.parquet"
    _parquet(file, 10, 10)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ShardError, match=r"a\.parquet is not a whole Parquet file"):
        await make_plan([str(file)], 2)


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=5), world_size=st.integers(1, 9))
def test_parts_cover_every_shard_once(sizes: list[int], world_size: int) -> None:
    """Whatever the sizes: in order, without gap or overlap, and no more parts than ranks if anything was split."""
    units = dict(enumerate(sizes)) if len(sizes) < world_size else {}
    parts = _split(len(sizes), world_size, units, sizes)
    for index, size in enumerate(sizes):
        mine = [part for part in parts if part.shard_index == index]
        if len(mine) == 1:
            assert mine == [Part(index)]
            continue
        assert (mine[0].start, mine[-1].end) == (0, size)
        assert all(one.end == two.start for one, two in itertools.pairwise(mine))
        assert all(part.end is not None and part.end > part.start for part in mine)
    assert len(parts) <= max(world_size, len(sizes))
    assert [part.shard_index for part in parts] == sorted(part.shard_index for part in parts)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("a.JSONL", ShardFormat("jsonl")),
        ("a.b.ndjson.GZ", ShardFormat("jsonl", "gzip")),
        ("s3://b/x.tsv.zstd", ShardFormat("tsv", "zstd")),
        ("x.parquet", ShardFormat("parquet")),
        ("x.parquet.gz", None),
        ("x.json", None),
        ("x.gz", None),
        ("jsonl", None),
        (".jsonl", None),
    ],
)
def test_a_name_tells_the_format(name: str, shape: ShardFormat | None) -> None:
    """By its suffixes, whatever their case."""
    assert shard_format(name) == shape


def test_the_digest_depends_on_shards_and_split() -> None:
    """Each field counts."""
    base = InputPlan([Shard("a", 1, "v")], 1, [Part(0)])
    others = [
        InputPlan([Shard("b", 1, "v")], 1, [Part(0)]),
        InputPlan([Shard("a", 2, "v")], 1, [Part(0)]),
        InputPlan([Shard("a", 1, "w")], 1, [Part(0)]),
        InputPlan([Shard("a", 1, "v")], 2, [Part(0)]),
        InputPlan([Shard("a", 1, "v")], 1, [Part(0, 0, 1)]),
    ]
    assert len({plan.digest() for plan in [base, *others]}) == 6
