"""Active stress runs, guarded commands and trainings, known by the notes that they leave."""
