"""wslgpud: watch GPU, RAM and swap under WSL2, and warn before memory runs out."""

__version__ = "0.1.0"
