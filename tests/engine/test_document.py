"""Rules of a document's identity."""

from airflow_provider_rollout.engine.document import Document, NumberedDocument, Position, content_id


def numbered(document_id: str, occurrence: int) -> NumberedDocument:
    """A document in its place."""
    return NumberedDocument(Document(text="t", id=document_id), 0, 0, occurrence, Position())


def test_the_key_is_the_id_and_its_repetition():
    """Two rows with one id are two documents."""
    assert numbered("a", 0).key == "a"
    assert numbered("a", 2).key == "a#2"


def test_a_row_without_id_is_known_by_its_content():
    """The order of fields does not matter, every value does."""
    assert content_id("t", {"a": 1, "b": 2}) == content_id("t", {"b": 2, "a": 1})
    assert len({content_id("t", {}), content_id("u", {}), content_id("t", {"a": 1}), content_id("t", {"a": "1"})}) == 4
    assert len(content_id("t", {})) == 32


def test_content_with_odd_characters_has_an_id():
    """A lone surrogate and NaN do not stop a job."""
    assert content_id("\ud83d", {"x": float("nan"), "big": 2**70})


def test_positions_sort_by_part_and_offset():
    """Later is greater."""
    assert Position(0, 9) < Position(1, 0) < Position(1, 5)


def test_a_rollout_may_write_to_its_documents_metadata_only():
    """Each document has its own metadata and media."""
    one, other = Document(text="", id="1"), Document(text="", id="2")
    one.metadata["seen"] = True
    one.media.append(None)
    assert other.metadata == {}
    assert other.media == []
