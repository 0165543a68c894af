"""Files appear whole or not at all."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_rollout.engine.storage.folder_files import delete_files, is_temporary, write_file


def test_a_new_file_must_not_exist_and_leaves_no_other(tmp_path):
    """The loser's bytes are nowhere."""
    path = tmp_path / "deep" / "a"
    first = write_file(path, b"one", new=True)
    with pytest.raises(FileExistsError):
        write_file(path, b"two", new=True)
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in path.parent.iterdir()] == ["a"]
    assert write_file(path, b"two", new=False) != first


def test_of_many_writers_of_a_new_file_one_wins(tmp_path):
    """The hard link decides."""

    def write(number):
        try:
            write_file(tmp_path / "a", str(number).encode(), new=True)
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(16) as threads:
        (winner,) = [number for number in threads.map(write, range(16)) if number is not None]
    assert (tmp_path / "a").read_bytes() == str(winner).encode()


def test_deleting_what_is_not_there_is_fine(tmp_path):
    """Twice is once."""
    write_file(tmp_path / "a", b"", new=True)
    for _ in range(2):
        delete_files([tmp_path / "a", tmp_path / "no" / "b"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "expected"), [("x/.ab12.writing", True), ("x/ab12.writing", False), ("x/.ab12", False)]
)
def test_a_file_being_written_is_known_by_its_name(name, expected):
    """A listing passes over it."""
    assert is_temporary(name) == expected
