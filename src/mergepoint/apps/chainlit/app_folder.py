"""The folder that Chainlit works in: its settings, welcome page, and login secret."""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from mergepoint.core.errors import MergepointError
from mergepoint.journal.lines import write_whole

SECRET = "secret"  # noqa: S105  (the file's name)
_HERE = Path(__file__).parent
_BYTES = 48

_SETTINGS = """\
# Written by `mergepoint ui` at every start.
[project]
session_timeout = 3600
user_session_timeout = 1296000
cache = false
persist_user_env = false
allow_origins = {origins}

[features]
unsafe_allow_html = false
latex = false
user_message_markdown = false
edit_message = false
auto_tag_thread = false
allow_thread_sharing = false
favorites = false

[features.spontaneous_file_upload]
enabled = false
accept = ["text/plain"]

[features.audio]
enabled = false

[features.mcp]
enabled = false

[UI]
name = "mergepoint"
description = "Conversations whose work you see"
language = "en-US"
cot = "full"
default_sidebar_state = "open"
confirm_new_chat = false
default_avatar_file_url = "/favicon"
custom_css = "/public/page.css"
custom_js = "/public/page.js"

[meta]
generated_by = "{version}"
"""


_WORDS: Mapping[str, str] = {
    "auth.login.form.email.label": "Name",
    "auth.login.form.email.placeholder": "",
    "auth.login.form.email.required": "a name is required",
    "chat.input.placeholder": "Ask for something, such as a report",
    "chat.input.actions.stop": "Stop",
    "chat.messages.status.using": "",
    "chat.messages.status.used": "",
    "navigation.header.readme": "How it works",
    "threadHistory.sidebar.empty": "No conversations yet",
}
"""The page's texts that replace Chainlit's."""


class RootError(MergepointError):
    """A page folder that can't be created or isn't safe."""


def root_of(place: str) -> Path:
    """Return the page's folder: inside a folder of sessions, or the user's state folder."""
    if "://" not in place:
        return Path(place) / ".ui"
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "mergepoint" / "ui"


def laid_out(root: Path, *, origins: Sequence[str]) -> Path:
    """Write the settings, the welcome page, and the pictures, and return the folder.

    Pages and pictures that exist are kept; settings, styles, and scripts are overwritten. Raise
    RootError if the folder can't be written.
    """
    settings = _SETTINGS.format(origins=json.dumps(list(origins)), version=version("chainlit"))
    try:
        (root / ".chainlit").mkdir(parents=True, exist_ok=True)
        # Written at every start: settings such as unsafe_allow_html must not be weakened by an old
        # file.
        write_whole(root / ".chainlit" / "config.toml", settings.encode(), flush=False)
        (root / "public").mkdir(exist_ok=True)
        for file in (_HERE / "chainlit.md", *(_HERE / "public").iterdir()):
            place = root / file.relative_to(_HERE)
            if file.suffix in (".css", ".js") or not place.exists():
                write_whole(place, file.read_bytes(), flush=False)
        _write_words(root / ".chainlit" / "translations")
    except OSError as error:
        raise RootError(f"can't write {error.filename or root}: {error.strerror}") from error
    return root


def _write_words(folder: Path) -> None:
    """Write Chainlit's English texts with the replacements; Chainlit adds the other languages."""
    spec = find_spec("chainlit")
    for home in (spec.submodule_search_locations or ()) if spec else ():
        words = json.loads((Path(home) / "translations" / "en-US.json").read_text("utf-8"))
        for path, said in _WORDS.items():
            *above, last = path.split(".")
            functools.reduce(dict.__getitem__, above, words)[last] = said
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(words, ensure_ascii=False, indent=2)
        write_whole(folder / "en-US.json", text.encode(), flush=False)


def secret_at(root: Path) -> str:
    """Return the secret that signs logins, creating it once with owner-only permissions.

    Raise RootError if other users can read it.
    """
    path = root / SECRET
    try:
        with suppress(FileExistsError):
            # O_EXCL: of two servers that start together, one creates the file and the other reads
            # it.
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w") as file:
                file.write(secrets.token_urlsafe(_BYTES))
        if path.stat().st_mode & 0o077:
            raise RootError(
                f"other users can read {path}, which signs logins; delete it to get a new one "
                "(everyone has to log in again)"
            )
        found = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise RootError(f"can't store the secret {path}: {error.strerror}") from error
    if len(found) < _BYTES:
        raise RootError(f"{path} is incomplete, as after a crash; delete it to get a new one")
    return found
