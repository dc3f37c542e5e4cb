"""Trees of frozen values that describe what to run, without any execution."""
