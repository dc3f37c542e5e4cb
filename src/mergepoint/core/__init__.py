"""State, merge, paths, errors, and strict YAML. Imports only the standard library and PyYAML."""
