"""The stand-in for a model that needs no key: rules that read and write."""
