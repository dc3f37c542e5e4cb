"""Draw: pictures of a tree, offline, from the tree alone."""

from mergepoint.report.mermaid import to_mermaid as to_mermaid
from mergepoint.report.svg import to_svg as to_svg
