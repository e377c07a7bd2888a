"""What to do about it: the doctor, .wslconfig, guarded builds, and whether a model fits."""
