"""Active stress runs, guarded commands and trainings, known by what they announce over the control socket."""
