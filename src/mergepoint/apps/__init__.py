"""Applications: the command."""
