"""Runs a model on sizes alone, in the Python that trains it; see ``main.py``.

It is passed to a foreign Python as a zip archive (``wslgpud.security.run_as``), hence the relative imports, and nothing
of ours is imported.
"""
