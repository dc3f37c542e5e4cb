"""Verdicts: who decides at a gate, as a value, so that a test can see what is decided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mergepoint.core.merge import last_response
from mergepoint.testing.seen import ToldToFail, digest, spoil
from mergepoint.tree.decision import Question

SAFE_WORDS = ("approve", "yes", "edit", "outputs", "reject", "no", "feedback")
BROKEN_WORDS = ("raise", "odd")


@dataclass(frozen=True)
class Verdicts:
    """Takes one of its words, by a digest of everything that it is shown.

    `approve` and `yes`; `reject`, `no`, and `feedback`, which says why; `edit` puts another text
    in place of the response (JSON where that is structured) and `outputs` another value in place
    of the first that is held back; where there is none to replace they approve. With one of
    BROKEN_WORDS it raises ToldToFail, or gives an answer that does not fit. With `spoils` it tries
    to change what it is shown.
    """

    words: Sequence[str]
    _: KW_ONLY
    spoils: bool = False

    def __call__(self, question: Question) -> Any:
        """Give the decision. Raises ToldToFail when the word says so."""
        kept = question.kept
        seen = digest(f"{question.path}?{question.text}", kept.messages, kept.outputs)
        keys = sorted(kept.outputs)
        has_text = last_response(kept.messages) is not None or question.capture_key in keys
        if self.spoils:
            spoil(kept.messages, kept.outputs.values())
        word = self.words[int(seen, 16) % len(self.words)]
        if word == "raise":
            raise ToldToFail("the answerer was told to fail")
        if word == "edit" and has_text:
            text = json.dumps({"edited": seen}) if question.structured else f"edited {seen}"
            return {"decision": "edit", "text": text, "feedback": "better so"}
        if word == "outputs" and keys:
            return {"decision": "edit", "outputs": {keys[0]: ["edited", seen]}}
        if word == "feedback":
            return {"decision": "reject", "feedback": f"not {seen}"}
        said = {"yes": True, "no": False, "reject": "reject", "odd": "perhaps"}
        return said.get(word, "approve")
