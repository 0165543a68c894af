"""The house rules that no linter knows: sizes, names, docstrings, a test for every room, nothing of one machine."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "airflow_provider_rollout"

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 45
BANNED_FILE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "types"}
TEXT_SUFFIXES = {"", ".cfg", ".html", ".ini", ".json", ".jsonl", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}

TESTED_ELSEWHERE = {
    "get_provider_info": "tests/test_public_names.py checks it against Airflow's own schema",
}

MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home|Users)/\w")
PACKAGE_INDEX = re.compile(r"index[-]url|find[-]links|https?://[^ ]+/(simple|packages)/")


def repository_files() -> list[Path]:
    """Every file that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so which files belong to the project cannot be told")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def python_files() -> list[Path]:
    """Every Python file of the project."""
    return [path for path in repository_files() if path.suffix == ".py"]


def rooms() -> list[Path]:
    """Every module of the package that is not a lobby."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def named(path: Path, *more: object) -> str:
    """A place, for a list of offenders."""
    return ":".join([str(path.relative_to(ROOT)), *map(str, more)])


def functions(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods."""
    return [node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_no_file_is_longer_than_a_room_may_be():
    """A file of more than 400 lines is two rooms."""
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def code_lines(function):
    """Lines of a function without its docstring, which may explain many parameters."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    explained = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - explained


def test_no_function_is_longer_than_a_page():
    """A function of more than 45 lines of code does more than one thing."""
    long = [
        named(path, node.lineno, node.name)
        for path in python_files()
        for node in functions(tree(path))
        if code_lines(node) > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_every_module_says_what_it_is_for():
    """A room without a docstring has no purpose that can be checked."""
    assert [named(path) for path in python_files() if not ast.get_docstring(tree(path))] == []


def test_every_public_name_has_a_docstring():
    """What others may call is explained where it stands."""
    silent = [
        named(path, node.lineno, node.name)
        for path in PACKAGE.rglob("*.py")
        for node in tree(path).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_every_test_states_its_rule():
    """A test's docstring is the rule that it keeps."""
    silent = [
        named(path, node.lineno, node.name)
        for path in python_files()
        if path.name.startswith("test_")
        for node in functions(tree(path))
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_file_bears_a_name_that_says_nothing():
    """A noun, not a drawer."""
    assert [named(path) for path in python_files() if path.stem in BANNED_FILE_NAMES] == []


def test_every_room_has_a_test_where_one_looks_for_it():
    """tests/ mirrors the package: test_<room>.py, or test_<room>_<part>.py where one file would be too long."""
    missing = []
    for room in rooms():
        place = room.relative_to(PACKAGE)
        if str(place.with_suffix("")) in TESTED_ELSEWHERE:
            continue
        folder = ROOT / "tests" / place.parent
        if not (folder / f"test_{room.stem}.py").exists() and not list(folder.glob(f"test_{room.stem}_*.py")):
            missing.append(named(room))
    assert missing == []


def test_every_room_has_a_row_in_the_readme():
    """The README's table of rooms is the map of the house."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [named(room) for room in rooms() if f"| `{room.relative_to(PACKAGE)}` |" not in readme] == []


def test_exported_names_exist_and_are_public():
    """``__all__`` lists what the module defines, each name once, none private."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        module = tree(path)
        exported = next(
            (
                ast.literal_eval(node.value)
                for node in module.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            ),
            [],
        )
        defined = set(_defined_names(module))
        wrong += [named(path, name) for name in exported if name not in defined or name.startswith("_")]
        wrong += [named(path, "a name twice")] if len(exported) != len(set(exported)) else []
    assert wrong == []


def _defined_names(module: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
    return names


def test_no_file_knows_one_machine():
    """No path of a person's machine and no address of a package index is committed."""
    found = [
        named(path, number, line.strip()[:80])
        for path in repository_files()
        if path.suffix in TEXT_SUFFIXES
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line) or PACKAGE_INDEX.search(line)
    ]
    assert found == []


def test_nothing_is_left_for_later():
    """No stub, no note to oneself, no error that is swallowed whole."""
    leftover = re.compile(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b|except( Base)?( ?Exception)?:\s*pass")
    found = [
        named(path, number, line.strip()[:80])
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if leftover.search(line)
    ]
    assert found == []
