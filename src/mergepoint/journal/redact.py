"""Redaction: no secrets in the files and databases of a run.

Known forms of keys are masked in all texts, and values under header-like names in the data of
providers. A user's hook may change the texts as well. Data in memory stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter

from mergepoint.core.errors import MergepointError
from mergepoint.journal.call_records import RECORDS
from mergepoint.journal.checked_lines import JournalError, encode

Redact = Callable[[str], str]

MASK = "[masked]"

# Every repetition that may fail has a bound, so that the time is proportional to a text's length,
# whatever the text.
_ANY = r"[A-Za-z0-9_\-.+/=~%]"
_VALUE = rf"""(?:(?={_ANY}{{0,200}}\d){_ANY}{{8,}}|[A-Za-z0-9_\-]{{20,}})"""
_CODE = (  # no secret after `token=`: a dotted or a snake_case name, a date
    r"(?![A-Za-z_]\w{0,60}(?:\.[A-Za-z_]\w{0,60}){1,9}(?![\w\-+/=~%])"
    r"|[a-z]{1,40}(?:_[a-z]{1,40}){1,9}_?\d{0,3}(?![\w.\-+/=~%])"
    r"|\d{4}-\d\d-)"
)
_TOKEN = rf"(?={_ANY}{{0,200}}\d)(?={_ANY}{{0,200}}[A-Za-z]){_CODE}{_ANY}{{8,}}+(?![(\[{{])"
_WORD = r"""(?![/~.$<({\[])(?=[^\s"',;&()\[\]{}<>]{0,200}\d)[^\s"',;&()\[\]{}<>]{6,}+(?![(\[{<])"""
_IS = r"""\\?["']?\s{0,20}[:=]\s{0,20}\\?["']?"""
_PAIR = r"""[\w!#$%&*+.^`|~-]{1,128}=[^\s;,"'\\]{1,4096}"""
_INSIDE = r"""(?:[^\s@"']|["'](?![\s,:;)}\]>+]))"""
_SECRETS = re.compile(
    rf"""(?x)
    (?P<name>
      (?:[Aa](?i:pi|ccess)[-_\ ]?(?i:key) | [Ss](?i:ecret)[-_\ ]?(?i:key)
        | [Cc](?i:lient)[-_](?i:secret) | [Aa](?i:ccess|uth)[-_](?i:token)
        | [Rr](?i:efresh)[-_](?i:token) | [Pp](?i:assword|asswd)
        | [Aa](?i:ccountkey) | [Ss](?i:haredaccesskey)){_IS}             # Azure
      | [Aa](?i:uthorization){_IS}(?:[A-Za-z]{{1,40}}\s{{1,20}})?
      | [Bb](?i:earer)\s{{1,20}}
    ){_VALUE}
    | (?P<token>[Tt](?i:oken){_IS}){_TOKEN}
    | (?P<password>[Pp](?i:assword|asswd|wd){_IS}){_WORD}
    | (?P<cookie>[Cc](?i:ookies?){_IS}(?:\[\s{{0,20}}\\?["'])?){_PAIR}
      (?:;[ ]?[\w!#$%&*+.^`|~-]{{1,128}}(?:=[^\s,;"'\\]{{0,4096}})?)*
    | (?P<login>://[^\s/:@"'\[]{{0,256}}+:)(?=[^\s@]{{1,512}}+@)(?!\d{{1,5}}["'/?\#])
      {_INSIDE}{{1,512}}+
      (?:@[^\s@/"'?\#,;]{{1,256}})*(?=@)
    | sk-(?<![\w-]sk-)[\w-]{{16,}} | [rs]k_(?:live|test)_\w{{16,}}  # OpenAI, Anthropic; Stripe
    | whsec_[\w+/=]{{20,}}                                          # Stripe's webhooks
    | AIza[\w-]{{30,}} | ya29\.[\w.-]{{20,}} | GOCSPX-[\w-]{{20,}}  # Google
    | 1//0[\w-]{{30,}}
    | gh[pousr]_\w{{20,}} | github_pat_\w{{20,}} | glpat-[\w-]{{16,}}
    | npm_[A-Za-z0-9]{{30,}} | pypi-Ag[\w-]{{30,}}
    | xox[a-z]-[\w-]{{10,}} | xapp-[\w-]{{10,}}                     # Slack
    | (?P<hook>hooks\.slack\.com/(?:services|workflows|triggers)/)[\w/+-]{{8,}}
    | A[KS]IA[0-9A-Z]{{16}}(?![0-9A-Za-z])                          # AWS
    | (?:IQoJ|F[Qw]oG)[\w+/=%-]{{60,}}
    | SG\.[\w-]{{16,40}}\.[\w-]{{30,}}                              # SendGrid
    | dapi[0-9a-f]{{32}}(?:-\d)?                                    # Databricks
    | do[opr]_v1_[0-9a-f]{{32,}}                                    # DigitalOcean
    | (?:hf|gsk|lsv2)_\w{{20,}} | (?:xai|pplx)-\w{{20,}}
    | (?<![A-Za-z0-9])r8_[A-Za-z0-9]{{30,}}                         # Replicate
    | eyJ[\w-]{{10,1024}}\.[\w-]{{10,}}\.[\w-]*                     # JSON web tokens
    | -----BEGIN[ ][A-Z ]{{0,40}}PRIVATE[ ]KEY-----(?s:.)*?(?:-----END[^-]*-----|\Z)
    """
)

# A text without any of these contains no secret; most records have none. One search by pydantic,
# whose regular expressions run in linear time, costs a hundredth of the search above.
_SIGNS = TypeAdapter(
    Annotated[
        str,
        StringConstraints(
            pattern=r"(?i)sk-|hf_|lsv2_|eyj|secret|bearer|header|cookie|authoriz|credential"
            r"|token\\*[\"']?\s{0,20}[:=]|a(?:iza|[ks]ia|pi ?key|ccess ?key)|(?:t|access)key"
            r"|g(?:h[pousr]_|sk_|lpat-|ocspx-)|p(?:plx-|assw|wd|ypi-)|x(?:ox|ai-|app-)"
            r"|_(?:key|pat_|live_|test_|v1_)|-(?:key|token|----begin)|token\"|ya29\.|1//0|npm_"
            r"|hooks\.slack|whsec_|iqoj|f[qw]og|sg\.|dapi|r8_|extra_(?:query|body)"
            r"|://[^\s/:@]*:[^\s@]+@"
        ),
    ]
).validator

_HEADERS = re.compile(r"(?i)headers?$")
_EXTRAS = re.compile(r"(?i)^extra[-_]?(?:query|body)$")
_NAMES = re.compile(
    r"(?i)(?:^|[-_])(?:authorization|api[-_]?key|access[-_]?key|private[-_]?key|cookie|token"
    r"|(?:access|auth|refresh|session|id)token|secret|password|passwd|pwd|credentials?)$"
)
_METADATA = ("response_metadata", "additional_kwargs")
_STRUCTURE = ("path", "name", "host", "tree", "run_id", "request", "requests")
_TEXTS = ("prompt", "response", "value", "params", "error", "inputs", "outputs", "text", "meta")
_TAKEN = ("response", "message", "messages", "value", "inputs")
_IDS = frozenset({"type", "id", "tool_call_id"})
_KEPT = {"prompt": _IDS, "error": frozenset({"type", "path", "node", "kind"})}
_NONE: frozenset[str] = frozenset()


_KEPT_GROUPS = ("name", "token", "password", "cookie", "login", "hook")


def mask(text: str) -> str:
    """Return text with keys of known forms masked."""
    return _SECRETS.sub(_masked, text)


def hides(name: str, value: Any) -> bool:
    """Return whether anything in a value under a name would be masked."""
    plain = {name: value}
    return bool(_deep(plain, _Mask(), named=True) != plain)


def redacted(text: str, redact: Redact) -> str:
    """Return text after the user's hook. Raises JournalError if the hook fails."""
    return _Hook(redact)(text)


def encode_safe(
    plain: dict[str, Any],
    redact: Redact | None,
    encoded: Callable[[dict[str, Any]], bytes] = encode,
) -> bytes:
    """Return the plain data of a header, record or transcript as JSON with secrets masked.

    The hook receives every text value of prompts, messages, responses, errors, inputs, outputs and
    parameters; its results are masked as well. Paths, ids and types stay. `masked` in the result
    names changed fields that a later run would use.

    Raises:
        JournalError: The hook fails, or a value is not JSON.
    """
    if redact is not None:
        plain = _walked(plain, _Hook(redact))
    body = encoded(plain)
    return encoded(_walked(plain, _Mask())) if suspicious(body) else body


def safe(plain: dict[str, Any], redact: Redact | None) -> dict[str, Any]:
    """Return the plain data of a header, record or transcript as `encode_safe` writes it."""
    return _walked(plain if redact is None else _walked(plain, _Hook(redact)), _Mask())


def safe_texts(value: Any, redact: Redact | None) -> Any:
    """Return a message's plain data with each text as it is written; types and ids stay."""
    return _deep(value if redact is None else _deep(value, _Hook(redact), _IDS), _Mask(), _IDS)


def suspicious(text: bytes) -> bool:
    """Return whether text or JSON may contain secrets; bytes that are not UTF-8 may."""
    try:
        return _SIGNS.isinstance_python(text.decode())
    except UnicodeDecodeError:
        return True


class _Mask:
    """Masks keys of known forms everywhere, and header-like names in the data of providers."""

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
                "written: fix the hook, then resume the run"
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
    """Return a value with each text replaced, except under the keys in `kept`.

    With `named`, values under header-like names are masked whatever they contain, and so are texts
    that a request adds to a provider's own (`extra_query`, `extra_body`).
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
        elif named and _EXTRAS.search(str(name)):
            said[name] = _hidden_texts(item)
        else:  # arguments of a tool are the user's data, even if one is named `id`
            inner = _NONE if name == "args" else kept
            # The logprobs of an answer list its tokens under `token`, which hides no secret there.
            said[name] = _deep(item, say, inner, named=named and name != "logprobs")
    return said


def _is_secret(name: str, item: Any) -> bool:
    return isinstance(item, str | list | tuple | dict) and _NAMES.search(name) is not None


def _hidden(value: Any) -> Any:
    """Return a value with its keys, and all values masked."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    return MASK


def _hidden_texts(value: Any) -> Any:
    """Return a value with its keys, numbers and booleans, and all texts masked."""
    if isinstance(value, Mapping):
        return {key: _hidden_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden_texts(item) for item in value]
    return value if value is None or isinstance(value, int | float) else MASK


def _taken(key: str, plain: Mapping[str, Any]) -> Any:
    found = plain.get(key)
    if key == "message" and found is not None:
        return [found["data"].get(part) for part in ("content", "tool_calls")]
    return found


def _masked(found: re.Match[str]) -> str:
    return next((found[name] for name in _KEPT_GROUPS if found[name]), "") + MASK
