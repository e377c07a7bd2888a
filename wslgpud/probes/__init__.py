"""Programs that run in child processes, so that a driver's hang or crash cannot affect the daemon.

A probe imports only its siblings here, and nothing heavy: it stays resident.
"""
