"""What can go wrong, by who is at fault.

We chose not to (Refusal), we should have and could not (CompileError), the user's program is wrong (ProgramError), our bug
(VerifyError).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A region that Flashlight leaves to Inductor. A value, never raised: it is logged, counted and shown by `explain`.

    Attributes:
        code: stable kebab-case slug, one for each reason (docs/debugging.md lists them).
        message: one sentence, capital letter, full stop, names in single quotes.
        where: file:line of the user's code, or the FX node's name, or "".
        hint: what the user may do, or "".
    """

    code: str
    message: str
    where: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        if self.where:
            text += f" Note: at {self.where}."
        if self.hint:
            text += f" Hint: {self.hint}"
        return text


class FlashlightError(Exception):
    """Base of the errors that Flashlight raises."""


class CompileError(FlashlightError):
    """A region was taken and its kernel could not be built. Falls back to Inductor unless `strict`."""


class RefusedError(CompileError):
    """A refusal under `strict=True`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class ProgramError(FlashlightError, RuntimeError):
    """The user's program is one that eager refuses; raised as eager would, never hidden by a kernel."""


class VerifyError(FlashlightError):
    """An invalid program left one of our passes: a bug of Flashlight. Carries the program's text as a note."""
