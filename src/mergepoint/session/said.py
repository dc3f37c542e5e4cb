"""Said: text as it enters a session. What is remembered is what is written."""

from __future__ import annotations

from dataclasses import dataclass

from mergepoint.core.errors import SessionError, StepError
from mergepoint.record.lines import JournalError
from mergepoint.record.redact import Redact, mask, redacted, suspicious


@dataclass(frozen=True, slots=True)
class Said:
    """A text that can be kept; `changed` says what was done to it: cleaned, redacted, masked."""

    text: str
    changed: tuple[str, ...] = ()


def said(given: object, *, what: str, redact: Redact | None = None) -> Said:
    """Give a text as it is kept.

    Halves of surrogate pairs, which UTF-8 does not hold, are joined where two make a character;
    a lone one becomes the six characters of its escape, such as `\ud83d`. Everything else stays,
    control characters too. The hook may change it, and keys of known forms are masked.

    Raises StepError for what is no text, and SessionError for a hook that fails.
    """
    if not isinstance(given, str):
        raise StepError(f"{what} is text, not {type(given).__name__}")
    steps = [_cleaned(given)]
    try:
        steps.append(steps[-1] if redact is None else _cleaned(redacted(steps[-1], redact)))
    except JournalError as error:
        raise SessionError(f"{what} cannot be written: {error}") from error
    steps.append(mask(steps[-1]) if suspicious(steps[-1].encode()) else steps[-1])
    acts = zip(("cleaned", "redacted", "masked"), [given, *steps], steps, strict=False)
    return Said(steps[-1], tuple(act for act, before, after in acts if before != after))


def spoken(given: object, *, what: str, redact: Redact | None = None) -> Said:
    """Do what `said` does. Raises StepError for blank text too."""
    kept = said(given, what=what, redact=redact)
    if not kept.text.strip():
        raise StepError(f"{what} is blank; give it some text")
    return kept


def _cleaned(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return whole.encode("utf-8", "backslashreplace").decode()
    return text
