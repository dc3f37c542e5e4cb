"""Blocks that come along, one verb a file; the file is named after the block."""
