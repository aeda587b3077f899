"""One short rule for each ATen op that we can lift. Importing this package registers them all."""

from flashlight.lift.rules import (
    composed,
    contractions,
    distances,
    generators,
    indexing,
    joins,
    pointwise,
    reductions,
    views,
)

__all__ = [
    "composed", "contractions", "distances", "generators", "indexing", "joins", "pointwise", "reductions", "views",
]  # fmt: skip
