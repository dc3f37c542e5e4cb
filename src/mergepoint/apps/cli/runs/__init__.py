"""`mergepoint runs`: the runs on disk, one command a file."""
