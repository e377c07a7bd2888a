"""What a Trainer's batches tell, and what the frameworks' trainers do on a warning; stand-ins have their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from wslgpud import training
from wslgpud.training.companion import Companion
from wslgpud.training.frameworks import Batches, attach, split


class Tokens:
    """As much of a tensor of token ids as is looked at."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.ndim = shape, len(shape)

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def __getitem__(self, rows: slice) -> Tokens:
        return Tokens(len(range(*rows.indices(self.shape[0]))), *self.shape[1:])


def trainer(**arguments: Any) -> SimpleNamespace:
    known = {"per_device_train_batch_size": 4, **arguments}
    return SimpleNamespace(args=SimpleNamespace(**known), current_gradient_accumulation_steps=3)


class Trained:
    """A training by a class of trainers whose batches are looked at."""

    def __init__(self, one: SimpleNamespace) -> None:
        self.companion = SimpleNamespace(facts={})
        self.batches, self.worked = Batches(self.companion), list[tuple[Any, int]]()
        self.one, worked = one, self.worked

        class Trainer:
            def training_step(self, model: Any, inputs: Any) -> float:
                worked.append((inputs, one.current_gradient_accumulation_steps))
                return 2.0

        self.batches.of(SimpleNamespace(Trainer=Trainer))
        self._step = Trainer.training_step

    def step(self, inputs: Any) -> float:
        return self._step(self.one, None, inputs)  # type: ignore[arg-type]  # has its attributes


def test_batches_are_reported_by_tokens_and_longest_sequence() -> None:
    training = Trained(trainer(max_seq_length=512))
    assert [training.step({"input_ids": Tokens(*shape)}) for shape in ((4, 8), (4, 6), (2, 9))] == [2.0] * 3

    told = {"batch": 4, "tokens": 4 * 8 + 4 * 6 + 2 * 9, "length": 9, "longest": 512}
    assert training.companion.facts == told


def test_a_batch_without_token_rows_is_reported_by_size_alone() -> None:
    training = Trained(trainer())
    for inputs in ({"input_ids": Tokens(4)}, {"input_ids": Tokens(4, 8, 2)}, {}, [Tokens(4, 8)]):
        training.step(inputs)

    assert training.companion.facts == {"batch": 4}


def test_the_newer_setting_for_the_longest_sequence_wins() -> None:
    both, neither = Trained(trainer(max_length=1024, max_seq_length=512)), Trained(trainer())
    neither.one.args.max_length = None
    for one in (both, neither):
        one.step({"input_ids": Tokens(4, 8)})

    assert both.companion.facts["longest"] == 1024
    assert "longest" not in neither.companion.facts


def test_after_a_warning_a_batch_is_processed_in_two_halves() -> None:
    training = Trained(trainer())
    training.step({"input_ids": Tokens(4, 8)})
    training.batches.halve("warning", 40.0)
    assert training.step({"input_ids": Tokens(4, 8)}) == 2.0 + 2.0

    assert [(inputs["input_ids"].shape, steps) for inputs, steps in training.worked] == [
        ((4, 8), 3),
        ((2, 8), 6),
        ((2, 8), 6),
    ]
    assert training.one.current_gradient_accumulation_steps == 3
    assert training.companion.facts == {"batch": 4, "tokens": 64, "length": 8}


def test_a_batch_of_numbers_without_rows_is_left_whole() -> None:
    scalars = {"loss_weight": SimpleNamespace(ndim=0, shape=())}

    assert split(scalars, 2) == [scalars]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Companion, SimpleNamespace, SimpleNamespace]]:
    """A companion beside both frameworks, already loaded, and torch."""

    class Trainer:
        default_root_dir, global_step = "/runs", 7

        def __init__(self) -> None:
            self.callbacks, self.saved = list[Any](), list[str]()

        def training_step(self, model: Any, inputs: Any) -> float:
            return 1.0

        def save_checkpoint(self, path: str) -> None:
            self.saved.append(path)

    emptied: list[int] = []
    transformers = SimpleNamespace(Trainer=type("T", (Trainer,), {}), TrainerCallback=object, DEFAULT_CALLBACKS=[])
    lightning = SimpleNamespace(Trainer=type("L", (Trainer,), {}), Callback=object)
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: emptied.append(1)), emptied=emptied)
    monkeypatch.setitem(sys.modules, "transformers.trainer", transformers)
    monkeypatch.setitem(sys.modules, "lightning.pytorch.trainer.trainer", lightning)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    companion = Companion()
    yield companion, transformers, lightning
    companion.close()


def warn(companion: Companion) -> None:
    companion._warned = ("warning", 40.0)
    companion._warn()


def test_save_writes_one_checkpoint_after_each_warning(
    loaded: tuple[Companion, SimpleNamespace, SimpleNamespace],
) -> None:
    companion, transformers, lightning = loaded
    attach(companion)
    (of_transformers,) = [made() for made in transformers.DEFAULT_CALLBACKS]
    one = lightning.Trainer()
    (of_lightning,) = one.callbacks

    def asked(already: bool = False) -> bool:
        control = SimpleNamespace(should_save=already)
        return bool(of_transformers.on_step_end(None, None, control).should_save)

    def saved() -> list[str]:
        of_lightning.on_train_batch_end(one, None, None, batch_idx=0)
        return list(one.saved)

    assert (asked(), asked(already=True), saved()) == (False, True, [])
    warn(companion)
    assert (asked(), saved()) == (True, ["/runs/wslgpud-step-7.ckpt"])
    assert (asked(), len(saved())) == (False, 1)
    assert sys.modules["torch"].emptied == []


def test_one_of_several_processes_neither_saves_nor_halves_alone(
    loaded: tuple[Companion, SimpleNamespace, SimpleNamespace], caplog: pytest.LogCaptureFixture
) -> None:
    companion, transformers, lightning = loaded
    attach(companion)
    (made,), one, control = transformers.DEFAULT_CALLBACKS, lightning.Trainer(), SimpleNamespace(should_save=False)
    of_transformers, one.world_size = made(), 2
    warn(companion)
    of_transformers.on_step_end(SimpleNamespace(world_size=2), None, control)
    one.callbacks[0].on_train_batch_end(one, None, None, batch_idx=0)
    shared = Trained(trainer(world_size=2))
    shared.batches.halve("warning", 40.0)
    shared.step({"input_ids": Tokens(4, 8)})

    assert (control.should_save, one.saved) == (False, [])
    assert caplog.messages == ["memory runs short, but no checkpoint is saved: this training has several processes"] * 2
    assert [inputs["input_ids"].shape for inputs, _ in shared.worked] == [(4, 8)]


@pytest.mark.parametrize(("actions", "emptied", "rows"), [(("drop-cache",), 1, [4]), (("halve-batch",), 0, [2, 2])])
def test_on_a_warning_only_what_was_asked_for_is_done(
    loaded: tuple[Companion, SimpleNamespace, SimpleNamespace], actions: tuple[str, ...], emptied: int, rows: list[int]
) -> None:
    companion, transformers, lightning = loaded
    worked: list[int] = []

    def training_step(self: Any, model: Any, inputs: Any) -> float:
        worked.append(inputs["labels"].shape[0])
        return 1.0

    transformers.Trainer.training_step = training_step
    attach(companion, actions)
    warn(companion)
    one = transformers.Trainer()
    vars(one).update(vars(trainer()))
    one.training_step(None, {"labels": Tokens(4, 8)})

    assert (len(sys.modules["torch"].emptied), worked) == (emptied, rows)
    assert (transformers.DEFAULT_CALLBACKS, lightning.Trainer().callbacks) == ([], [])


def test_callbacks_can_be_added_by_hand_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "watch", Companion)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=Trained))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace(Callback=Tokens))

    assert issubclass(training.TrainerCallback, Trained)
    assert issubclass(training.LightningCallback, Tokens)
    with pytest.raises(AttributeError, match="KerasCallback"):
        training.__getattr__("KerasCallback")


def test_actions_on_a_warning_are_passed_on_by_the_environment() -> None:
    plain, acting = training.environment({"HOME": "/me"}), training.environment({}, ["save", "drop-cache"])

    assert plain == {"HOME": "/me", "PYTHONPATH": acting["PYTHONPATH"]}
    assert acting.keys() == {"PYTHONPATH", "WSLGPUD_ON_WARNING"}
    assert acting["WSLGPUD_ON_WARNING"] == "save,drop-cache"
