"""BM25: how well documents fit a query, by the words that they share.

    score(q, d) = sum over the words of q of  idf(w) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * n))

`tf` is how often the word is in the document, `n` the document's length in words over the average.
`idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))`, where N is the number of documents and df that of
those with the word: the weight of Robertson and Sparck Jones, with 1 added so that a word which
is in most of them counts little and never less than nothing.

Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, Foundations and
Trends in Information Retrieval 3(4), 2009, https://doi.org/10.1561/1500000019
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

K1 = 1.2
B = 0.75

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Give the words of a text, without case."""
    return _WORD.findall(text.casefold())


class BM25:
    """An index over texts. `k1` (from 0) is how much repetition counts, `b` (0 to 1) length."""

    def __init__(self, texts: Iterable[str], *, k1: float = K1, b: float = B) -> None:
        counts = [Counter(words(text)) for text in texts]
        lengths = [count.total() for count in counts]
        average = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._size = len(counts)
        self._k1 = k1
        self._damping = [k1 * (1 - b + b * length / average) for length in lengths]
        self._found: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for word, times in count.items():
                self._found.setdefault(word, []).append((number, times))

    def scores(self, query: str) -> dict[int, float]:
        """Give the scores of the documents with a word of the query, by their numbers from 0."""
        scores: dict[int, float] = {}
        for word in words(query):
            found = self._found.get(word, ())
            idf = math.log1p((self._size - len(found) + 0.5) / (len(found) + 0.5))
            for number, times in found:
                gain = idf * times * (self._k1 + 1) / (times + self._damping[number])
                scores[number] = scores.get(number, 0.0) + gain
        return scores

    def best(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Give number and score of the k best documents; of equal ones the first comes first."""
        scores = self.scores(query)
        return sorted(scores.items(), key=lambda scored: (-scored[1], scored[0]))[:k]
