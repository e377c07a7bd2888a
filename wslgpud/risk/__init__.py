"""The risk engine: pure, without I/O or clock, the same live and in ``wslgpud replay``."""
