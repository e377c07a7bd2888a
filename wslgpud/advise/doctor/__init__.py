"""The doctor: is this machine set up so that training on it works, and if not, what to do."""

from wslgpud.advise.doctor.diagnosis import run
from wslgpud.advise.doctor.findings import Finding

__all__ = ["Finding", "run"]
