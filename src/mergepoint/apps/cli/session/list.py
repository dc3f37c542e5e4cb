"""`mergepoint session list`: the sessions there are."""

from __future__ import annotations

from mergepoint.apps.cli.options import JsonOption, SessionsOption, TracebackOption
from mergepoint.apps.cli.session.arguments import place_of

EXAMPLES = (
    "mergepoint session list",
    "mergepoint session list --sessions sqlite:///sessions.db",
    "mergepoint session list --json | jq -r '.[].session_id'",
)


def list_(
    *,
    sessions: SessionsOption = "sessions",
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """List the sessions, the one that was written last first."""
    from mergepoint.apps.cli.output import put_json, put_row, tell
    from mergepoint.apps.cli.session.told import told_briefs

    briefs = place_of(sessions).sessions()
    if json:
        put_json(
            [
                {
                    "session_id": one.session_id,
                    "created_at": one.created_at and one.created_at.isoformat(),
                    "updated_at": one.updated_at and one.updated_at.isoformat(),
                    "title": one.title,
                    "problem": one.problem or None,
                }
                for one in briefs
            ]
        )
    elif not briefs:
        tell(f"there are no sessions in {sessions}")
    else:
        for line in told_briefs(briefs):
            put_row(line)
