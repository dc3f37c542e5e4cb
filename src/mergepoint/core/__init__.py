"""The law: state, merge, path, errors. Standard library only."""
