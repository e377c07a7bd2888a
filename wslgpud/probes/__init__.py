"""Programs that run in a child process of their own, so that a hang or a crash of a driver stays there.

A probe imports nothing of the daemon but its siblings here, and nothing heavy: it is resident all the time.
"""
