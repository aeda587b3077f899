"""Makes a failing program plainer as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.choices import Choices, simpler


def shrink(c: Choices, fails: Callable[[Choices], bool], limit: int = 120) -> Choices:
    """The plainest choices that still fail, after at most `limit` trials."""
    tried: set[Choices] = set()
    progress = True
    while progress and limit > 0:
        progress = False
        for candidate in simpler(c):
            if candidate in tried:
                continue
            tried.add(candidate)
            limit -= 1
            if fails(candidate):
                c, progress = candidate, True
                break
            if limit <= 0:
                break
    return c
