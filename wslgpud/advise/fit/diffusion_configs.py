"""The configurations of pipelines known by name, as far as they affect memory.

From the config.json files of stable-diffusion-v1-5/stable-diffusion-v1-5, stabilityai/stable-diffusion-xl-base-1.0,
black-forest-labs/FLUX.1-dev and black-forest-labs/FLUX.1-schnell on Hugging Face.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DECLARED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
#: by the name of the pipeline: each model by its name in model_index.json
CONFIGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    name: {part: _DECLARED["models"][model] for part, model in parts.items()}
    for name, parts in _DECLARED["pipelines"].items()
}
