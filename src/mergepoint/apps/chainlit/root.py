"""Root: the folder that Chainlit works in, with its settings, its welcome page and the secret."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from mergepoint.core.errors import MergepointError
from mergepoint.record.whole import write_whole

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
edit_message = false
auto_tag_thread = false
allow_thread_sharing = false
favorites = false

[features.spontaneous_file_upload]
enabled = false

[features.audio]
enabled = false

[features.mcp]
enabled = false

[UI]
name = "mergepoint"
description = "Conversations whose work you see"
cot = "full"
default_sidebar_state = "open"
confirm_new_chat = false
default_avatar_file_url = "/favicon"

[meta]
generated_by = "{version}"
"""


class RootError(MergepointError):
    """A folder for the page that cannot be made or is not safe."""


def root_of(place: str) -> Path:
    """Give the folder beside a place of sessions: in a folder of them, else in the user's own."""
    if "://" not in place:
        return Path(place) / ".ui"
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "mergepoint" / "ui"


def laid_out(root: Path, *, origins: Sequence[str]) -> Path:
    """Write the settings, the welcome page and the pictures, and give the folder.

    A page or picture that somebody changed stays as it is; settings are written anew.
    Raises RootError where it cannot be written.
    """
    settings = _SETTINGS.format(origins=json.dumps(list(origins)), version=version("chainlit"))
    try:
        (root / ".chainlit").mkdir(parents=True, exist_ok=True)
        write_whole(root / ".chainlit" / "config.toml", settings.encode(), flush=False)
        (root / "public").mkdir(exist_ok=True)
        for file in (_HERE / "chainlit.md", *(_HERE / "public").glob("*.svg")):
            place = root / file.relative_to(_HERE)
            if not place.exists():
                write_whole(place, file.read_bytes(), flush=False)
    except OSError as error:
        raise RootError(f"cannot write {error.filename or root}: {error.strerror}") from error
    return root


def secret_at(root: Path) -> str:
    """Give the secret that signs who is logged in; it is made once, for its owner's eyes alone.

    Raises RootError for one that others may read.
    """
    path = root / SECRET
    try:
        with suppress(FileExistsError):
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w") as file:
                file.write(secrets.token_urlsafe(_BYTES))
        if path.stat().st_mode & 0o077:
            raise RootError(
                f"others may read {path}, which signs who is logged in: delete it, and another is "
                "made; everybody has to log in again"
            )
        found = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise RootError(f"cannot keep the secret {path}: {error.strerror}") from error
    if len(found) < _BYTES:
        raise RootError(f"{path} holds no secret, as after a kill: delete it, another is made")
    return found
