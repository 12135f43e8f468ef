"""Pages and the notebook name only what exists: files, links, commands, flags, fields, imports."""

import ast
import importlib
import itertools
import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

import widenet_jax
from widenet_jax.config.files import load_config
from widenet_jax.files import shipped_models
from widenet_jax.main import flag_parser

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "widenet_jax"
DOCS = ROOT / "docs"
SITE = [*sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]
PAGES = [*sorted(ROOT.glob("*.md")), *SITE]
# A line that runs a program of ours, in an indented block or in a fenced one of a shell.
OURS = re.compile(
    r"(?:\S*python (?=scripts/|-m widenet_jax)|(?=widenet-)|(?:\./)?(?=scripts/\S+\.sh))(.*)"
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Folders that runs, sweeps and users create.
OTHER_FOLDERS = (
    *("checkpoints/", "best/", "failed/", "tensorboard/", "timing/", "wandb/", "profile/"),
    *("logs/", "photos/", "WORKDIR/"),
)
NOT_FIELDS = {"json", "md"}  # config.json and config.md are files
OWN_FIELDS = {"model.moe.router.size", "model.moe.losses.even"}  # of extensions/cosine_router.py


@cache
def cells_of(page: Path) -> list[tuple[str, str]]:
    """Returns the kind and the text of each cell of a notebook."""
    return [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(page.read_text())["cells"]
    ]


def text_of(page: Path) -> str:
    if page.suffix == ".md":
        return page.read_text()
    return "\n\n".join(text for kind, text in cells_of(page) if kind == "markdown")


def programs_of(page: Path) -> list[str]:
    """Returns the Python programs of a page: fenced blocks, cells of a notebook."""
    if page.suffix == ".md":
        return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for kind, text in cells_of(page) if kind == "code"]


def lines_of(page: Path) -> list[str]:
    """Returns the lines of a page's indented blocks and shell blocks, continued ones joined."""
    text = text_of(page)
    blocks = re.findall(r"^    (.*)", text, re.MULTILINE)
    blocks += re.findall(r"^```(?:bash|sh|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for line in "\n".join(blocks).replace("\\\n", " ").splitlines()]


def commands_of(page: Path) -> list[list[str]]:
    """Splits the commands of a page that run a program of ours into words."""
    ours = [found[1] for line in lines_of(page) if (found := OURS.match(line))]
    return [shlex.split(line, comments=True) for line in ours]


COMMANDS = [words for page in PAGES for words in commands_of(page)]
each_command = pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def config_named(words: list[str]) -> str:
    """Returns the config of a command; by default, one that has every section."""
    text = " ".join(words)
    found = re.search(r"(configs/\S+)", text)
    config = found[1] if found else "configs/imagenet.py"
    config = config.removesuffix(":pretrained")  # which has the fields of some model
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
    assert len(COMMANDS) >= 120  # as before the pages were rewritten


def module_of(program: str) -> str:
    """Returns the module that a program runs: a script, or a command of the installed package."""
    if program.endswith(".sh"):
        return re.search(r"-m (\S+)", (ROOT / program).read_text())[1]
    if program in PROJECT["scripts"]:
        return PROJECT["scripts"][program].partition(":")[0]
    return program if "/" not in program else f"widenet_jax.cli.{Path(program).stem}"


@each_command
def test_a_command_has_the_flags_that_a_page_gives_it(words: list[str], capsys):
    program, *rest = words if words[0] != "-m" else words[1:]
    subcommand = [word for word in rest[:1] if not word.startswith("-")]
    module = module_of(program)
    if module == "widenet_jax.main":
        usage = flag_parser().format_help()
    elif program.startswith("scripts/compare/"):
        usage = (ROOT / program).read_text()
    elif module == "pytest":
        usage = (ROOT / "tests" / "conftest.py").read_text()
    else:
        assert importlib.import_module(module).main([*subcommand, "--help"]) == 0
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


def test_git_ignores_the_folders_that_commands_write():
    written = {
        found[1]
        for words in COMMANDS
        for word in words
        if (found := re.fullmatch(r"--(?:out|workdir)=([a-z_]+)(?:/\w+)*", word))
    }
    ours = written - {*shipped_models()}
    assert ours >= {"runs", "analysis"}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {name for name in ours if not {f"/{name}/", f"{name}/"} & {*ignored}} == set()


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


def anchors_of(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as a code host makes them."""
    titles = re.findall(r"^#+ (.*)", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_lead_somewhere(page: Path):
    """Also those of pictures."""
    links = r"""\]\(([^)\s]+)\)|\b(?:src|srcset|href)="([^"]+)\""""
    for target in map("".join, re.findall(links, text_of(page))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        assert not anchor or anchor in anchors_of(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_rows(page: Path):
    """Not one paragraph, as where an editor has filled lines."""
    assert not [row for row in page.read_text().splitlines() if "---|---" in row.strip("-| :")]


def test_pages_are_short():
    """The log has no limit."""
    readme = ROOT / "README.md"
    others = [p for p in SITE if p.suffix == ".md" and p.parent not in (DOCS, DOCS / "log")]
    assert len(text_of(readme).split()) <= 900
    assert sum(len(text_of(page).split()) for page in [readme, *others]) <= 16_000


def test_every_page_is_in_the_site():
    """Each once, in a toctree of the index; the log's pages are in that of its own index."""
    trees = re.findall(r"```{toctree}\n(.*?)```", text_of(DOCS / "index.md"), re.DOTALL)
    listed = [line for line in "\n".join(trees).splitlines() if line and line[0] != ":"]
    pages = [str(page.relative_to(DOCS).with_suffix("")) for page in SITE]
    of_log = [page for page in pages if page.startswith("log/") and page != "log/index"]
    assert sorted([*listed, *of_log, "index"]) == sorted(pages)


@each_page
def test_python_in_a_page_compiles_and_imports_what_exists(page: Path):
    for program in programs_of(page):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("widenet_jax"):
                module = importlib.import_module(node.module)
                assert not [name.name for name in node.names if not hasattr(module, name.name)]
        for name in re.findall(r"\bwj\.(\w+)", program):
            assert hasattr(widenet_jax, name), f"widenet_jax has no {name}"


def test_names_to_extend_are_in_the_files_that_the_map_gives():
    """The map of the code says "`NAME` in `file`": the file defines the name."""
    text = text_of(DOCS / "why" / "architecture.md")
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
