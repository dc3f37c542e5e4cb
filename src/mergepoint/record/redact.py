"""Redact: what is written of a run holds no secrets.

Known forms of keys are masked in every text, header-like names in what goes to and comes from
providers. A user's hook may change the texts as well. What is in memory stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter

from mergepoint.core.errors import MergepointError
from mergepoint.record.lines import JournalError, encode
from mergepoint.record.plain import RECORDS

Redact = Callable[[str], str]

MASK = "[masked]"

_VALUE = r"""(?:(?=[^\s"',;&]*\d)[A-Za-z0-9_\-.+/=~]{8,}|[A-Za-z0-9_\-]{20,})"""
_IS = r"""\\?["']?\s*[:=]\s*\\?["']?"""
_SECRETS = re.compile(
    rf"""(?x)
    (?P<name>
      (?:[Aa](?i:pi|ccess)[-_\ ]?(?i:key) | [Ss](?i:ecret)[-_\ ]?(?i:key)
        | [Cc](?i:lient)[-_](?i:secret) | [Aa](?i:ccess|uth)[-_](?i:token)
        | [Rr](?i:efresh)[-_](?i:token) | [Pp](?i:assword|asswd)){_IS}
      | [Aa](?i:uthorization){_IS}(?:[A-Za-z]+\s+)?
      | [Bb](?i:earer)\s+
    ){_VALUE}
    | (?P<login>://[^\s/:@"']*:)[^\s/@"']+(?=@)
    | sk-(?<![\w-]sk-)[\w-]{{16,}} | [rs]k_(?:live|test)_\w{{16,}}  # OpenAI, Anthropic; Stripe
    | AIza[\w-]{{30,}}                                              # Google
    | gh[pousr]_\w{{20,}} | github_pat_\w{{20,}} | glpat-[\w-]{{16,}}
    | xox[a-z]-[\w-]{{10,}}                                         # Slack
    | A[KS]IA[0-9A-Z]{{16}}(?![0-9A-Za-z])                          # AWS
    | (?:hf|gsk|lsv2)_\w{{20,}} | (?:xai|pplx)-\w{{20,}}
    | eyJ[\w-]{{10,}}\.[\w-]{{10,}}\.[\w-]*                         # JSON web tokens
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----(?s:.)*?(?:-----END[^-]*-----|\Z)
    """
)

# A text in which none of these is found holds nothing that is masked: most records do not. One
# search by pydantic, whose regular expressions run in linear time, costs a hundredth of the above.
_SIGNS = TypeAdapter(
    Annotated[
        str,
        StringConstraints(
            pattern=r"(?i)sk-|hf_|lsv2_|eyj|secret|[sh]_token|bearer|header|cookie|authoriz"
            r"|credential|token\"|a(?:iza|[ks]ia|pi ?key|ccess ?key)|g(?:h[pousr]_|sk_|lpat-)"
            r"|p(?:plx-|assw)|x(?:ox|ai-)|_(?:key|pat_|live_|test_)|-(?:key|token|----begin)"
            r"|://[^\s/:@]*:[^\s/@]+@"
        ),
    ]
).validator

_HEADERS = re.compile(r"(?i)headers?$")
_NAMES = re.compile(
    r"(?i)(?:^|[-_])(?:authorization|api[-_]?key|access[-_]?key|private[-_]?key|cookie|token"
    r"|secret|password|passwd|credentials?)$"
)
_METADATA = ("response_metadata", "additional_kwargs")
_STRUCTURE = ("path", "name", "host", "tree", "run_id", "request", "requests")
_TEXTS = ("prompt", "response", "value", "params", "error", "inputs", "outputs", "text", "meta")
_TAKEN = ("response", "message", "messages", "value", "inputs")
_IDS = frozenset({"type", "id", "tool_call_id"})
_KEPT = {"prompt": _IDS, "error": frozenset({"type", "path", "node", "kind"})}
_NONE: frozenset[str] = frozenset()


def mask(text: str) -> str:
    """Give a text with keys of known forms masked."""
    return _SECRETS.sub(_masked, text)


def hides(name: str, value: Any) -> bool:
    """Say whether anything is masked in a value that stands under a name."""
    plain = {name: value}
    return bool(_deep(plain, _Mask(), named=True) != plain)


def redacted(text: str, redact: Redact) -> str:
    """Give a text as the user's hook has it. Raises JournalError for a hook that fails."""
    return _Hook(redact)(text)


def encode_safe(
    plain: dict[str, Any],
    redact: Redact | None,
    encoded: Callable[[dict[str, Any]], bytes] = encode,
) -> bytes:
    """Give the plain data of a header, record or transcript as JSON with its secrets masked.

    The hook is given every text value of prompts, messages, responses, errors, inputs, outputs
    and parameters; what it gives is masked as well. Paths, ids and types stay. `masked` names the
    fields that a later run would take from here and that are no longer what they were.

    Raises JournalError for a hook that fails, and for what JSON does not hold.
    """
    if redact is not None:
        plain = _walked(plain, _Hook(redact))
    body = encoded(plain)
    return encoded(_walked(plain, _Mask())) if suspicious(body) else body


def safe(plain: dict[str, Any], redact: Redact | None) -> dict[str, Any]:
    """Give the plain data of a header, record or transcript as `encode_safe` writes it."""
    return _walked(plain if redact is None else _walked(plain, _Hook(redact)), _Mask())


def safe_texts(value: Any, redact: Redact | None) -> Any:
    """Give a message's plain data with each text as it is written; types and ids stay."""
    return _deep(value if redact is None else _deep(value, _Hook(redact), _IDS), _Mask(), _IDS)


def suspicious(text: bytes) -> bool:
    """Say whether there may be something to mask in a text, or in JSON; what is not UTF-8 may."""
    try:
        return _SIGNS.isinstance_python(text.decode())
    except UnicodeDecodeError:
        return True


class _Mask:
    """Masks keys of known forms everywhere, and header-like names where providers' data is."""

    names = True

    def __call__(self, text: str) -> str:
        return mask(text)


class _Hook:
    """Calls the user's hook with the texts of a run."""

    names = False

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def __call__(self, text: str) -> str:
        try:
            said = self._redact(text)
        except MergepointError:
            raise
        except Exception as error:
            raise JournalError(
                f"the redact hook raised {type(error).__name__}: {error}; without it nothing is "
                "written: mend the hook, then resume the run"
            ) from error
        if not isinstance(said, str):
            raise JournalError(f"the redact hook gave a {type(said).__name__}; let it give text")
        return said


_Say = _Mask | _Hook


def _walked(plain: Mapping[str, Any], say: _Say) -> dict[str, Any]:
    safe = {key: _field(key, item, say) for key, item in plain.items()}
    changed = {key for key in _TAKEN if _taken(key, plain) != _taken(key, safe)}
    if changed:
        safe["masked"] = sorted(changed.union(plain.get("masked", ())))
    return safe


def _field(key: str, item: Any, say: _Say) -> Any:
    if key in _STRUCTURE or item is None:
        return item
    if key in ("lead", "messages"):
        return [_message(one, say) for one in item]
    if key == "message":
        return _message(item, say)
    if key in RECORDS:
        return [_walked(record, say) for record in item]
    if key in _TEXTS or say.names:
        return _deep(item, say, _KEPT.get(key, _NONE), named=say.names and key == "params")
    return item


def _message(plain: Mapping[str, Any], say: _Say) -> dict[str, Any]:
    data = {
        key: item if key in _IDS else _deep(item, say, _IDS, named=say.names and key in _METADATA)
        for key, item in plain["data"].items()
    }
    return {**plain, "data": data}


def _deep(value: Any, say: _Say, kept: frozenset[str] = _NONE, *, named: bool = False) -> Any:
    """Give a value with each text said anew, but for the keys in `kept`.

    With `named` what stands under a header-like name is hidden, whatever it looks like.
    """
    if isinstance(value, str):
        return say(value)
    if isinstance(value, list | tuple):
        return type(value)(_deep(item, say, kept, named=named) for item in value)
    if not isinstance(value, Mapping):
        return value
    said: dict[Any, Any] = {}
    for key, item in value.items():
        name = mask(key) if say.names and isinstance(key, str) else key
        if name in kept and isinstance(item, str):
            said[name] = item
        elif named and (_HEADERS.search(str(name)) or _is_secret(str(name), item)):
            said[name] = _hidden(item)
        else:  # what a tool is called with is the user's, also where it is called `id`
            inner = _NONE if name == "args" else kept
            said[name] = _deep(item, say, inner, named=named and name != "logprobs")
    return said


def _is_secret(name: str, item: Any) -> bool:
    return isinstance(item, str | list | tuple | dict) and _NAMES.search(name) is not None


def _hidden(value: Any) -> Any:
    """Give a value with its names and nothing of what they stand for."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    return MASK


def _taken(key: str, plain: Mapping[str, Any]) -> Any:
    found = plain.get(key)
    if key == "message" and found is not None:
        return [found["data"].get(part) for part in ("content", "tool_calls")]
    return found


def _masked(found: re.Match[str]) -> str:
    return (found["name"] or found["login"] or "") + MASK
