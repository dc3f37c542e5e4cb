"""Built-in blocks: one file per block, named after the block."""
