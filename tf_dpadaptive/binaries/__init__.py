"""Binaries: each parses flags and calls the runner."""
