"""What to run: trees of frozen values, no execution."""
