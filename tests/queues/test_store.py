"""Stores of watches."""

from __future__ import annotations

from typing import Any

from scheduler.queues.store import Store


def raw(name: str, value: int | None, **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "value": value}


def test_a_store_has_what_its_reader_returns_of_existing_objects() -> None:
    store = Store[int](lambda raw: raw["value"])
    assert store.observed(raw("a", 1)) == "/a"
    assert store.observed(raw("a", 10, namespace="n")) == "n/a"
    assert store.observed(raw("b", None)) == "/b"
    assert store == {"/a": 1, "n/a": 10}
    store.observed(raw("a", 2))
    store.listed({"/a"})
    assert store == {"/a": 2}
    store.observed(raw("a", None))
    store.deleted(raw("gone", 1))
    assert store == {}
