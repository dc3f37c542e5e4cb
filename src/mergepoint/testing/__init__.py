"""Fakes, strategies and fixtures for the tests of users, and for our own."""
