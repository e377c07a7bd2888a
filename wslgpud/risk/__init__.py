"""The risk engine: pure, without I/O and without a clock, the same live and in ``wslgpud replay``."""
