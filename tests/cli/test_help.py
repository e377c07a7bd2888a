"""Every command explains itself in the reader's language, and says the same by the same option."""

from __future__ import annotations

import inspect
import re
import shlex
from collections import defaultdict
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from click.testing import CliRunner

from tests.words import catalogue
from tests.words.catalogue import commands
from tests.words.latin import latin_words
from wslgpud import words
from wslgpud.cli import app
from wslgpud.cli import help as helps
from wslgpud.cli.commands import CliCommand

COLUMNS = 80
#: names of ours and of others in help, beside those that every Chinese text may have
NAMES = (
    "auto",
    "off",
    "ram",
    "vram",
    "gpu",
    "pandas",
    "promtool",
    "truth",
    "adamw",
    "adafactor",
    "momentum",
    "sgd",
    "mixed",
    "autocast",
    "bitsandbytes",
    "gptq",
    "awq",
    "shell",
    "root",
    "yesterday",
    "now",
    "temperature",
    "history",
    "SIGSTOP",
    "TERM",
    "alice",
    "Ctrl-C",
    "PNG",
    "pyarrow",
    "job",
    "tsdb",
    "create-blocks-from",
    "info",
    "lora",
    "inference",
    "training",
    "vllm",
    "desktop",
    "max",
    "sum",
    "mean",
    "min",
    "openmetrics",
    "csv",
    "parquet",
    "doctor",
    "LoRA",
    "Lines",
    "gzip",
    "alerts show",
    "usage",
    "OpenMetrics",
    "GGUF",
)


def paths(command=app, words_=()):
    """Return each command with the words that call it."""
    found = {words_: command}
    for name, below in getattr(command, "commands", {}).items():
        found |= paths(below, (*words_, name))
    return found


PATHS = paths()
each_command = pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(path) or "wslgpud")


@pytest.fixture(autouse=True)
def _english_again(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    yield
    words.use("en")


def shown(path, language):
    words.use(language)
    context = app.context_class(app, info_name="wslgpud", **app.context_settings)
    for number, name in enumerate(path, 1):
        command = PATHS[path[:number]]
        context = app.context_class(command, info_name=name, parent=context, **command.context_settings)
    return context.get_help()


@each_command
def test_help_names_no_type_of_the_program_and_shows_an_example(path):
    text = shown(path, "en")

    assert not re.search(r"<\w+|BOOLEAN|INTEGER|TEXT\b", text)
    grouped = hasattr(PATHS[path], "commands") and path and path != ("stress",)
    assert grouped or re.search(r"\nExamples:\n  (#|sudo wslgpud|wslgpud) ", text)


@each_command
@pytest.mark.parametrize("language", words.LANGUAGES)
def test_help_fits_eighty_columns_and_parts_no_word(path, language):
    text, doc = shown(path, language), helps.doc_of(PATHS[path])
    examples = {line for line, _ in doc.examples}

    assert [line for line in text.splitlines() if helps.cells(line) >= COLUMNS and line.strip() not in examples] == []
    if language == "en":
        told = " ".join(text.split())
        assert all(word in told for one in catalogue.in_help(PATHS[path]) for word in one.split())


@each_command
def test_chinese_help_is_chinese(path):
    text, command = shown(path, "zh"), PATHS[path]
    for line, _ in helps.doc_of(command).examples:
        text = text.replace(line, "")
    text = re.sub(r"^  [\w-]+  ", "", text, flags=re.MULTILINE)  # names of commands

    assert re.search(r"[\u4e00-\u9fff]", text)
    assert latin_words(text, NAMES) == []


@pytest.mark.parametrize(("language", "head"), [("en", "Usage:"), ("zh", "用法：")])
def test_help_is_in_the_configured_language(language, head):
    done = CliRunner().invoke(app, ["replay", "-h"], env={"WSLGPUD_ALERTS__LANGUAGE": language})

    assert done.stdout.startswith(head)


@each_command
def test_every_example_is_a_line_that_the_command_takes(path):
    for line, _ in helps.doc_of(PATHS[path]).examples:
        for part in re.split(r"&&|[|>]+", line):
            typed = shlex.split(part.strip().removeprefix("sudo "))
            if typed[:1] != ["wslgpud"]:
                continue
            command, rest = app, typed[1:]
            while hasattr(command, "commands") and rest and rest[0] in command.commands:
                command, rest = command.commands[rest[0]], rest[1:]
            command.make_context("wslgpud", rest)


def declarations():
    """Return, for each option's name, what declares it in which commands."""
    found = defaultdict(list)
    for path, command in PATHS.items():
        if command.callback is None:
            continue
        hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
        for param in command.params:
            hint = hints.get(param.name)
            if param.param_type_name == "option" and get_origin(hint) is Annotated:
                found[param.opts[-1]].append((path, get_args(hint)[1]))
    return found


#: what the same name has to say of different things
DIFFERENT = {
    "--json": {("replay",)},  # a line for each change of level: a contract with programs
    "--all": {("doctor",), ("incidents",)},  # all checks, all incidents
    "--user": {("brake", "on")},  # whose jobs; elsewhere a service of one's own
    "--for": {("record",), ("alerts", "silence")},  # both a length of time
}


@pytest.mark.parametrize("language", words.LANGUAGES)
def test_the_list_of_commands_says_what_each_says_itself(language):
    words.use(language)

    assert [helps.short(one) for section in app.sections().values() for one in section] == [
        helps.short(app.commands[name]) for name in app.commands
    ]


def test_an_option_of_several_commands_is_declared_once():
    several = {
        name: [" ".join(path) for path, one in uses if one is not uses[0][1]]
        for name, uses in declarations().items()
        if not all(path in DIFFERENT.get(name, ()) for path, _ in uses)
        and len({id(one) for path, one in uses if path not in DIFFERENT.get(name, ())}) > 1
    }

    assert several == {}


def test_every_option_says_what_it_takes_and_what_for():
    wordless = [
        (path, param.opts[-1])
        for path, command in PATHS.items()
        for param in command.params
        if not param.help or not (param.metavar or getattr(param, "is_flag", False))
    ]

    assert wordless == []


def test_no_command_says_a_time_by_another_option():
    options = {option for command in commands() for param in command.params for option in param.opts}

    assert not options & {"--from", "--to", "--begin", "--end", "--days", "--seconds", "--hours", "--duration"}


@pytest.mark.parametrize(
    ("arguments", "english", "chinese"),
    [
        (["histry"], "there is no command histry; did you mean history?", "没有命令 histry"),
        (["status", "--jsn"], "there is no option --jsn; did you mean --json?", "没有选项 --jsn"),
        (["capture", "a", "x"], "unexpected argument: 'x'", "多余的参数"),
        (["fit"], "MODEL is missing", "缺少模型"),
        (["fit", "7B", "--batch", "x"], "--batch must be a whole number, at least 1", "--batch 必须为：整数"),
        (["fit", "7B", "--batch"], "--batch needs a value", "--batch 需要一个值"),
        (["status", "--json=1"], "--json takes no value", "--json 不带值"),
        (["history", "--across", "x"], "--across must be one of sum, mean, max, min", "sum、mean、max、min 之一"),
    ],
)
def test_a_usage_error_is_one_line_in_the_readers_language(arguments, english, chinese):
    told = {
        language: CliRunner().invoke(app, arguments, env={"WSLGPUD_ALERTS__LANGUAGE": language})
        for language in words.LANGUAGES
    }

    for language, text in (("en", english), ("zh", chinese)):
        assert told[language].exit_code == 2
        assert text in told[language].stderr
        assert len(told[language].stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "where"),
    [(["histry"], ""), (["status", "--jsn"], " status"), (["stress", "show", "x"], " stress show"), (["fit"], " fit")],
)
def test_a_usage_error_names_the_command_whose_help_says_more(arguments, where):
    told = CliRunner().invoke(app, arguments, env={"LC_ALL": "C.UTF-8"}).stderr

    assert re.search(rf"\(see '[^ ]+{where} --help'\)$", told.rstrip())


def test_a_plot_may_be_followed_by_an_option_instead_of_a_file(tmp_path):
    named = ["incidents", "1", "--plot", "--state", str(tmp_path / "a.png")]

    assert "unexpected argument" not in CliRunner().invoke(app, named, env={"LC_ALL": "C.UTF-8"}).output


def test_the_language_is_that_of_the_configuration_that_is_named(tmp_path):
    file = tmp_path / "wslgpud.toml"
    file.write_text('[alerts]\nlanguage = "zh"\n')

    done = CliRunner().invoke(app, ["config", "check", "--config", str(file)], env={"LC_ALL": "C.UTF-8"})

    assert done.stdout == f"{file}：正常\n"


def test_a_command_that_needs_arguments_shows_its_help():
    done = CliRunner().invoke(app, ["config"])

    assert done.exit_code == 2
    assert done.stderr.startswith("Usage: ")
    assert "config [OPTIONS] COMMAND ..." in done.stderr


def test_chinese_wraps_anywhere_but_before_punctuation():
    lines = helps.wrapped("内存不足，程序停顿。请减少 batch size", 10).splitlines()

    assert lines == ["内存不足，", "程序停顿。", "请减少", "batch size"]


@pytest.mark.parametrize(
    ("ends", "status", "told"), [(KeyboardInterrupt, 130, ""), (EOFError, 1, "\nwslgpud: given up\n")]
)
def test_ctrl_c_ends_silently_and_end_of_input_with_a_line(ends, status, told):
    def asks() -> None:
        """Ask."""
        raise ends

    done = CliRunner().invoke(CliCommand("asks", asks), env={"LC_ALL": "C.UTF-8"})

    assert (done.exit_code, done.stdout, done.stderr) == (status, "", told)
