r"""Reads, checks and writes ``%UserProfile%\.wslconfig`` by WSL's own rules."""
