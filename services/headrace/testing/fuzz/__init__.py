"""Mutational fuzzing of everything that Headrace parses itself: `python -m headrace.testing.fuzz` (see `runner`)."""
