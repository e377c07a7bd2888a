"""Active stress runs and guarded commands, known by notes in a world-writable folder.

Each runner keeps one small file there, as its user is seldom the daemon's; the daemon and ``monitor`` read them.
"""
