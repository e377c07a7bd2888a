"""Stress runs, guarded commands and trainings under way, known by the notes that they leave."""
