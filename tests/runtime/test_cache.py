"""The cache: what is found is what was stored under exactly that key."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

import pytest

from flashlight.runtime import cache

KEY = {"kind": "test", "source": "x = 1"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLIGHT_CACHE_DIR", str(tmp_path / "cache"))


def test_stores_and_loads() -> None:
    assert cache.load(KEY) is None
    folder = cache.store(KEY, {"kernel.py": "x = 1\n"})
    assert cache.load(KEY) == {"kernel.py": "x = 1\n"}
    assert folder == cache.path_of(KEY, "kernel.py").parent
    assert json.loads((folder / "key.json").read_text())["key"] == KEY


def test_key_holds_every_part() -> None:
    cache.store(KEY, {"kernel.py": "x = 1\n"})
    assert cache.load({**KEY, "kind": "other"}) is None
    assert cache.load({"kind": "test"}) is None


def test_only_the_user_may_look() -> None:
    cache.store(KEY, {"kernel.py": ""})
    assert cache.root().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "kernel.py").write_text("import os\n"),
        lambda folder: (folder / "kernel.py").unlink(),
        lambda folder: (folder / "key.json").write_text("{"),
        lambda folder: (folder / "key.json").write_text('{"files": {}, "key": {}}'),
        lambda folder: (folder / "key.json").unlink(),
    ],
    ids=["changed source", "no source", "broken key", "other key", "no key"],
)
def test_a_damaged_entry_is_a_miss(damage: object) -> None:
    folder = cache.store(KEY, {"kernel.py": "x = 1\n"})
    damage(folder)  # type: ignore[operator]
    assert cache.load(KEY) is None
    assert not folder.exists()
    cache.store(KEY, {"kernel.py": "x = 1\n"})
    assert cache.load(KEY) == {"kernel.py": "x = 1\n"}


def test_writers_at_once() -> None:
    def write() -> None:
        for _ in range(20):
            cache.store(KEY, {"kernel.py": "x = 1\n"})

    threads = [threading.Thread(target=write) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert cache.load(KEY) == {"kernel.py": "x = 1\n"}
    assert not [n for n in os.listdir(cache.root()) if n.startswith(".new-")]


def test_lock_is_exclusive() -> None:
    order: list[str] = []

    def second() -> None:
        with cache.lock(KEY):
            order.append("second")

    with cache.lock(KEY):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_without_a_home_files_go_where_temporary_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLASHLIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache.root() == tmp_path / "home" / "flashlight"
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert cache.root() == tmp_path / f"flashlight_{os.getuid()}"
    cache.store(KEY, {"kernel.py": "x = 1\n"})
    assert cache.load(KEY) == {"kernel.py": "x = 1\n"}
