"""Loaded by each Python under ``wslgpud inside``: starts the companion.

Python loads only one ``sitecustomize``: the one that this hides is loaded afterwards.
"""

from __future__ import annotations

import os
import sys
from importlib import machinery, util
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _loaded(name: str) -> Any:
    """Return a module of the companion, under the name by which ``import wslgpud.training`` would find it."""
    full = f"wslgpud.training.{name}"
    if full not in sys.modules:
        spec: Any = util.spec_from_file_location(full, os.path.join(os.path.dirname(_HERE), f"{name}.py"))
        sys.modules[full] = module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[full]


try:
    _actions = os.environ.get("WSLGPUD_ON_WARNING", "save").split(",")
    _loaded("frameworks").attach(_loaded("companion").watch(), _actions)
except Exception as error:
    sys.stderr.write(f"wslgpud: no companion in this Python: {error!r}\n")
_others = [place for place in sys.path if os.path.abspath(place) != _HERE]
_hidden = machinery.PathFinder.find_spec("sitecustomize", _others)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(util.module_from_spec(_hidden))
