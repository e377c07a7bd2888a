"""Asks llama.cpp how much memory a GGUF file takes: ``llama-fit-params`` prints its own arithmetic.

https://github.com/ggml-org/llama.cpp/pull/22171: a line per device, of MiB of the model, the context and the compute
buffers; the last line is the host's, and the only one of a build without CUDA. Its build 11434 was asked of a GGUF of 4
layers with 2 x 64 numbers in the keys of a token: 273 MiB of weights, and 64 MiB of a context of 32768, as by hand.
"""

from __future__ import annotations

import os
import re

from wslgpud.advise.fit.plan import CONTEXT_BYTES, Estimate, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel
from wslgpud.security.run_as import Command, program, run
from wslgpud.words import cause, say, template

PROGRAM = "llama-fit-params"
_SECONDS = 60.0
_ROW = re.compile(r"^(\S{1,40}) (\d{1,9}) (\d{1,9}) (\d{1,9}) *$", re.MULTILINE)


def asked(source: NamedModel, plan: Plan) -> Estimate:
    """Return what llama.cpp says. Raises NoEstimate: it is not installed, or did not say."""
    if (path := program(PROGRAM)) is None:
        raise NoEstimate("{program} is not installed", program=PROGRAM)
    words = [path, "--model", source.asked, "--ctx-size", str(plan.batch * plan.context), "--fit-print", "on"]
    try:
        status, output, complaints = run(Command(words, dict(os.environ), None), _SECONDS)
    except OSError as error:  # a TimeoutError, too
        raise NoEstimate("{program}: {why}", program=PROGRAM, why=cause(error)) from error
    every = _ROW.findall(output)
    rows = [row for row in every if row[0].lower() != "host"]
    if status or not every:
        why = next(reversed(complaints.strip().splitlines()), "") or say("exit status {status}", status=status)
        raise NoEstimate("{program}: {why}", program=PROGRAM, why=why)
    if not rows:
        raise NoEstimate("{program} is built without CUDA", program=PROGRAM)
    model, context, compute = (sum(int(row[column]) for row in rows) << 20 for column in (1, 2, 3))
    parts = {template("weights"): model, template("keys and values"): context, template("activations"): compute}
    return Estimate({**parts, template("CUDA itself"): CONTEXT_BYTES})
