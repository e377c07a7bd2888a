"""The doctor: is this machine set up so that training on it works, and if not, what to do."""

from wslgpud.advise.doctor.diagnosis import document, run
from wslgpud.advise.doctor.findings import Finding

__all__ = ["Finding", "document", "run"]
