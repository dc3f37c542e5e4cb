"""Output: bytes of any kind become text that can be kept and shown."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mergepoint.core.text import shown
from mergepoint.sandbox.process import Output

pieces = st.lists(
    st.binary(max_size=12)
    | st.text(max_size=6).map(lambda t: t.encode("utf-8", "replace"))
    | st.sampled_from([b"\r", b"\n", b"\r\n", b"\xc3", b"\xa4"])
)


@given(pieces, st.integers(1, 60))
@example([b"\r", b"", b"\n"], 2)
def test_output_is_bounded_and_can_be_seen(given_pieces: list[bytes], most: int) -> None:
    """However it comes, the text is that of its first bytes, and has nothing that hides."""
    output, whole = Output(most), b"".join(given_pieces)
    told = [output.take(piece) for piece in given_pieces]
    told.append(output.take(b"", last=True))
    kept = whole[:most].decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    assert output.text == "".join(told) == shown(kept, keep="\n\t")
    assert output.text.encode().decode() == output.text
    assert output.truncated == (len(whole) > most)
