"""Generated sources on disk, by content: what is found is what was asked for, or it is not there.

An entry is a folder named by the hash of its key, holding files and `key.json`, which says in words what the key was made of.
A folder is written beside its place and renamed into it, so that readers see all of it or nothing; a folder whose files do not
have the hashes recorded in `key.json` counts as missing and is removed. The cache is the user's alone (mode 0700).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

FORMAT = 1


def root() -> Path:
    """The cache's folder: $FLASHLIGHT_CACHE_DIR, or flashlight under the user's cache folder.

    Where that cannot be written (a container without a home), a folder of the user's under that for temporary files.
    """
    named = os.environ.get("FLASHLIGHT_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "flashlight"
    return folder if _is_usable(folder) else _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"flashlight_{os.getuid()}"


def _is_usable(folder: Path) -> bool:
    """Whether the folder is the user's own, or can be made."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if there == folder and there.stat().st_uid != os.getuid():
        return False
    return os.access(there, os.W_OK | os.X_OK)


def key_of(parts: Mapping[str, str]) -> str:
    """The name of the entry for a key: a hash over names and values."""
    text = json.dumps({"format": FORMAT, **dict(sorted(parts.items()))}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def load(parts: Mapping[str, str]) -> dict[str, str] | None:
    """The files of an entry, or None. A damaged entry is removed."""
    folder = root() / key_of(parts)
    try:
        record = json.loads((folder / "key.json").read_text(encoding="utf-8"))
        hashes = record["files"]
        files = {name: (folder / name).read_text(encoding="utf-8") for name in hashes}
        if record["key"] == dict(parts) and all(_hash(files[n]) == h for n, h in hashes.items()):
            return files
    except FileNotFoundError:
        if not folder.exists():
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


def store(parts: Mapping[str, str], files: Mapping[str, str]) -> Path:
    """Write an entry and return its folder. The last writer of equal content wins, which is the same."""
    base = _private_folder()
    folder = base / key_of(parts)
    scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=base))
    try:
        for name, text in files.items():
            (scratch / name).write_text(text, encoding="utf-8")
        record = {"key": dict(parts), "files": {n: _hash(t) for n, t in files.items()}}
        (scratch / "key.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        try:
            scratch.rename(folder)
        except OSError:
            if load(parts) is None:
                shutil.rmtree(folder, ignore_errors=True)
                scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def path_of(parts: Mapping[str, str], name: str) -> Path:
    """Where a file of an entry lies."""
    return root() / key_of(parts) / name


@contextlib.contextmanager
def lock(parts: Mapping[str, str]) -> Iterator[None]:
    """Hold an entry's lock, so that one process makes it while others wait."""
    path = _private_folder() / f".{key_of(parts)}.lock"
    with open(path, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _private_folder() -> Path:
    folder = root()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid():
        msg = f"The cache folder '{folder}' belongs to another user."
        raise PermissionError(msg)
    folder.chmod(0o700)
    return folder


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def package_fingerprint() -> str:
    """A hash of this package's sources: code that another version generated is not reused."""
    total = hashlib.sha256()
    base = Path(__file__).parents[1]
    for path in sorted(base.rglob("*")):
        if path.suffix in (".py", ".h"):
            total.update(str(path.relative_to(base)).encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:16]
