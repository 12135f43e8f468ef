"""README.md and docs/ name only what exists: files, links, commands, flags, config fields."""

import importlib
import itertools
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from widenet_jax.config.files import load_config
from widenet_jax.main import flag_parser

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "widenet_jax"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# Folders that runs, sweeps and users create.
OTHER_FOLDERS = (
    *("checkpoints/", "best/", "failed/", "tensorboard/", "timing/", "wandb/", "profile/"),
    *("logs/", "photos/", "WORKDIR/"),
)
NOT_FIELDS = {"json", "md"}  # config.json and config.md are files
OWN_FIELDS = {"model.moe.router.size", "model.moe.losses.even"}  # of extensions/cosine_router.py


def text_of(page: Path) -> str:
    return page.read_text()


def commands_of(page: Path) -> list[list[str]]:
    """Splits the commands of the indented blocks that run a program of ours into words."""
    blocks = "\n".join(re.findall(r"^    (.*)", text_of(page), re.MULTILINE))
    lines = blocks.replace("\\\n", " ").splitlines()
    ours = [line for line in lines if re.match(r"python (scripts/|-m widenet_jax)", line)]
    return [shlex.split(line, comments=True)[1:] for line in ours]


COMMANDS = [words for page in PAGES for words in commands_of(page)]
each_command = pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def config_named(words: list[str]) -> str:
    """Returns the config of a command; by default, one that has every section."""
    text = " ".join(words)
    found = re.search(r"(configs/\S+)", text)
    config = found[1] if found else "configs/imagenet.py"
    return config.partition(":")[0] if "--import=" in text else config  # names an own router


@cache
def fields_of(config: str) -> set[str]:
    """Returns the names of all fields and sections of a config, with dots."""

    def names(section: dict, prefix: str) -> set[str]:
        found = set()
        for key, value in section.items():
            found.add(prefix + key)
            if isinstance(value, dict):
                found |= names(value, f"{prefix}{key}.")
        return found

    return names(load_config(config).to_dict(), "")


def test_there_are_commands():
    assert len(COMMANDS) > 30


@each_command
def test_a_command_has_the_flags_that_a_page_gives_it(words: list[str], capsys):
    program, *rest = words if words[0] != "-m" else words[1:]
    subcommand = [word for word in rest[:1] if not word.startswith("-")]
    if program == "widenet_jax.main":
        usage = flag_parser().format_help()
    elif program.startswith("scripts/compare/"):
        usage = text_of(ROOT / program)
    else:
        command = importlib.import_module(f"widenet_jax.cli.{Path(program).stem}")
        assert command.main([*subcommand, "--help"]) == 0
        usage = capsys.readouterr().out
    for word in rest:
        flag = word.partition("=")[0]
        if flag.startswith("--") and not flag.startswith("--config."):
            assert re.search(rf"{flag}\b", usage), f"{program} has no flag {flag}"


@each_command
def test_a_command_sets_fields_that_its_config_has(words: list[str]):
    fields = fields_of(config_named(words)) | {"variant"}
    fields |= OWN_FIELDS if "--import=" in " ".join(words) else set()
    named = [word[9:].partition("=")[0] for word in words if word.startswith("--config.")]
    for flag, word in itertools.pairwise(words):
        if flag in ("--sweep", "--zip", "--space"):
            named.append(word.partition("=")[0])
    assert set(named) <= fields


@each_page
def test_fields_in_the_text_exist(page: Path):
    named = set(re.findall(r"\bconfig\.([a-z_]+(?:\.[a-z_0-9]+)*)", text_of(page))) - NOT_FIELDS
    configs = ("imagenet", "text_pretrain", "glue", "squad", "language_model")
    files = [f"configs/{name}.py" for name in configs]
    files += [f"configs/language_model.py:tiny,{x}" for x in ("attention=switch_head", "ffn=moe")]
    assert named <= set().union(OWN_FIELDS, *map(fields_of, files))


@each_page
def test_files_in_the_text_exist(page: Path):
    """Names in backticks with a folder are relative to the repository or to the package."""
    named = re.findall(r"`((?:[\w.]+/)+(?:[\w.]+\.(?:py|sh|md))?)`", text_of(page))
    ours = [name for name in named if not name.startswith(OTHER_FOLDERS)]
    missing = [name for name in ours if not ((ROOT / name).exists() or (PACKAGE / name).exists())]
    assert missing == []


@each_page
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)", text_of(there), re.MULTILINE)
            assert anchor in {title.lower().replace(" ", "-") for title in titles}, target


def test_names_to_extend_are_in_the_files_that_the_map_gives():
    """The map of the code says "`NAME` in `file`": the file defines the name."""
    text = text_of(ROOT / "docs" / "why" / "architecture.md")
    places = re.findall(r"`([A-Z_]+)` in\s+`([\w/]+\.py)`", text)
    assert len(places) >= 10
    for name, file in places:
        assert re.search(rf"^{name}\b.* = ", (PACKAGE / file).read_text(), re.MULTILINE), name


def test_the_log_names_every_result():
    """A page of docs/log/ stands in its index, and figures lie beside a page that links to them."""
    log = ROOT / "docs" / "log"
    pages = {page.name: text_of(page) for page in log.glob("*.md")}
    index = re.findall(r"\]\((\w+\.md)\)", pages["index.md"])
    assert sorted([*index, "index.md"]) == sorted(pages)
    raw = [file for file in log.rglob("*") if file.suffix in (".csv", ".json", ".jsonl", ".png")]
    targets = {target for text in pages.values() for target in re.findall(r"\]\(([^)]+)\)", text)}
    assert {str(file.relative_to(log)) for file in raw} <= targets
