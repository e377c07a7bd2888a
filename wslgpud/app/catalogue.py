"""Every metric of the program, gathered from the modules that declare them."""

from __future__ import annotations

from wslgpud import verdict
from wslgpud.advise import checkups
from wslgpud.alerts import incidents as alerts
from wslgpud.app import return_cache, systemd
from wslgpud.brake import policy as brake
from wslgpud.metrics import Catalogue
from wslgpud.risk import risk_metrics as risk
from wslgpud.risk import training_metrics as training
from wslgpud.sampling import sampler
from wslgpud.serve import otlp, publisher
from wslgpud.store import store_metrics as store
from wslgpud.stress import stress_metrics as stress


def catalogue() -> Catalogue:
    """Return all families, in the order in which they are exposed; ValueError where two have the same name."""
    mine = (return_cache, systemd)
    declaring = (sampler, risk, training, verdict, stress, checkups, alerts, brake, store, *mine, publisher, otlp)
    sources = (spec for source in sampler.SOURCES for spec in source.metrics)
    return Catalogue((*sources, *(spec for module in declaring for spec in module.METRICS)))
