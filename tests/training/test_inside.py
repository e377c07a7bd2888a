"""``wslgpud inside``: without a line of code in the program, the daemon knows its steps; frameworks save in time."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import WSLGPUD, clean_environment, daemon, eventually
from tests.support.elsewhere import hearing
from wslgpud import training
from wslgpud.training import environment

PROGRAMS = Path(__file__).parent / "programs.py"
#: a module that Python would load by itself, which the companion's must not hide
HIDDEN = "import os; os.environ['HIDDEN'] = 'loaded'"


def lacks(*modules: str) -> bool:
    return any(importlib.util.find_spec(name) is None for name in modules)


def inside(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [*WSLGPUD, "inside", "--", sys.executable, "-c", code]
    return subprocess.run(command, env=clean_environment(home), capture_output=True, text=True, check=False)


def test_each_python_of_the_command_gets_companion_and_own_site(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    code = "import os, sys; print(os.environ['HIDDEN'], sys.modules['wslgpud.training.companion'].COMPANION.watching)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    done = subprocess.run(
        [*WSLGPUD, "inside", "--", sys.executable, "-c", nested],
        env={**clean_environment(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )

    assert (done.stdout, done.stderr) == ("loaded True\n", "")


def test_the_companion_loads_nothing_that_the_program_has_not(tmp_path: Path) -> None:
    done = inside(
        "import sys; print(sorted(m for m in sys.modules if m.startswith(('torch', 'wslgpud', 'sqlalchemy'))))",
        tmp_path,
    )

    assert done.stdout.strip() == "['wslgpud.training.companion', 'wslgpud.training.frameworks']"


def test_output_status_and_signals_are_the_commands_own(tmp_path: Path) -> None:
    done = inside("import sys; print('said'); sys.exit(7)", tmp_path)
    missing = subprocess.run([*WSLGPUD, "inside", "--", "/no/such"], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("said\n", 7)
    assert missing.returncode == 2
    assert "/no/such: No such file or directory" in missing.stderr


@pytest.mark.parametrize("file", ["companion.py", "frameworks.py", "inside/sitecustomize.py"])
def test_code_loaded_into_other_programs_parses_with_python_3_8(file: str) -> None:
    ast.parse((Path(training.__file__).parent / file).read_text(), feature_version=(3, 8))


def test_a_search_path_of_the_users_own_is_kept() -> None:
    assert environment({"PYTHONPATH": "/mine"})["PYTHONPATH"].endswith(f"inside{os.pathsep}/mine")


@pytest.mark.torch
@pytest.mark.skipif(lacks("torch"), reason="torch is not installed: ./tests/run --all")
def test_the_daemon_names_the_leak_of_an_unmodified_program(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        command = [*WSLGPUD, "inside", "--", sys.executable, str(PROGRAMS), "outputs_kept", "5000", "cpu"]
        (tmp_path / "wslgpud").symlink_to(running.state)
        training = subprocess.Popen(command, env={**clean_environment(tmp_path), "XDG_STATE_HOME": str(tmp_path)})

        def named() -> re.Match[str] | None:
            said = running.get("/metrics")
            return re.search(
                rf'growth_per_step_bytes{{pid="{training.pid}",program="programs.py",resource="ram"}} (.*)', said
            )

        try:
            found = eventually(named, "the leak to be named")
            incidents = eventually(
                lambda: [
                    i for i in json.loads(running.get("/api/v1/status"))["incidents"] if i["rule"] == "training_leak"
                ],
                "it to be told",
            )
        finally:
            training.kill()
            training.wait()

    assert 3e6 < float(found[1]) < 12e6
    assert "programs.py keeps" in incidents[0]["headline"]


ACCELERATE = """
import sys, torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 4)
loader = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for rows in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(rows).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
print(sys.modules["wslgpud.training.companion"].COMPANION.steps)
"""


@pytest.mark.torch
def test_steps_of_accelerate_count_accumulated_batches_as_one(tmp_path: Path) -> None:
    if lacks("torch", "accelerate"):
        pytest.skip("torch or accelerate is not installed: ./tests/run --all")
    done = inside(ACCELERATE, tmp_path)

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "6"  # of 12 batches


TRAINER = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=64)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", num_key_value_heads=2, **sizes))
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, i):
        import os
        if any(name.startswith("checkpoint") for name in os.listdir(sys.argv[1])): sys.exit(0)
        ids = torch.randint(1, 64, (8,)); return {"input_ids": ids, "labels": ids}
Trainer(model=model, args=TrainingArguments(sys.argv[1], per_device_train_batch_size=2, max_steps=1 << 20, report_to=[],
    save_strategy="no", use_cpu=True, disable_tqdm=True), train_dataset=Data()).train()
"""
LIGHTNING = """
import os, sys, torch, lightning
class Model(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = torch.nn.Linear(4, 4)
    def training_step(self, batch, _):
        if any(name.endswith(".ckpt") for name in os.listdir(sys.argv[1])): sys.exit(0)
        return self.net(batch).pow(2).mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
lightning.Trainer(accelerator="cpu", max_steps=1 << 20, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, default_root_dir=sys.argv[1]).fit(
    Model(), torch.utils.data.DataLoader(torch.randn(1 << 16, 4), batch_size=2))
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("code", "needs"),
    [(TRAINER, ("transformers", "accelerate")), (LIGHTNING, ("lightning",))],
    ids=["Trainer", "Lightning"],
)
def test_a_framework_saves_a_checkpoint_when_the_daemon_warns(
    tmp_path: Path, code: str, needs: tuple[str, ...]
) -> None:
    if lacks("torch", *needs):
        pytest.skip(f"{', '.join(needs)} not installed: ./tests/run --all")
    command = [*WSLGPUD, "inside", "--", sys.executable, "-c", code, str(tmp_path)]
    with hearing(tmp_path / ".local" / "state" / "wslgpud") as runs:
        training = subprocess.Popen(command, env=clean_environment(tmp_path), stdout=subprocess.DEVNULL)

        def ended() -> bool:
            runs.warned = {training.pid: ("warning", 40.0)}
            return training.poll() is not None

        try:
            eventually(ended, "a checkpoint")
        finally:
            training.kill()
            training.wait()

    assert training.returncode == 0
    assert [f for f in tmp_path.rglob("*") if f.name.startswith(("checkpoint", "wslgpud-step"))]
