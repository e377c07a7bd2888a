"""What runs now and has an end: a stress run, a guarded command. Known by notes that lie in files.

Whoever runs it keeps one small file where everybody may write, as its user seldom is the daemon's. The daemon
and ``wslgpud monitor`` read them.
"""
