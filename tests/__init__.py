"""The tests. A package, since dependencies of an extra bring one of the same name along."""
