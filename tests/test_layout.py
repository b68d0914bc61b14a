"""The rooms of the package are layers, from the shell down to the errors, and imports run downward."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import accumtrain
from accumtrain.kinds.table import load

PACKAGE = Path(accumtrain.__file__).parent
LAYERS = [  # from the top; the members of a layer do not import each other
    {"shell"},
    {"keras"},
    {"jobs"},
    {"planning", "exports"},
    {"engine"},
    {"models", "optim", "data", "devices"},
    {"backprop"},
    {"runs"},
    {"process"},
    {"config"},
    {"kinds"},
    {"progress"},
    {"console"},
    {"errors", "version"},
]
KINDS = {"optim.config", "optim.schedules"}  # modules that belong to the layer of kinds, wherever they lie
LEVELS = {room: level for level, layer in enumerate(LAYERS) for room in layer}
# What a command imports before its job begins; whole rooms, or modules of a room.
LIGHT = {
    *("shell", "runs", "process", "config", "kinds", "console", "errors", "version"),
    *(
        f"planning.{name}"
        for name in ("advice", "auto_steps", "plan_file", "probe", "probed_plan", "search", "tpu_plan")
    ),
    "data.named_images",
    *(f"jobs.{name}" for name in ("dispatch", "info", "plan", "report")),
}
HEAVY = {"tensorflow", "keras", "numpy", "matplotlib"}
TARGET = re.compile(r"accumtrain(\.\w+)+:\w+")  # "module:attribute"
IMPORTERS = {"import_module", "__import__"}


def module_of(file: Path) -> str:
    """engine/window.py -> accumtrain.engine.window."""
    return ".".join(("accumtrain", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


FILES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {module: ast.parse(file.read_text()) for module, file in FILES.items()}
INSIDE = [module for module in FILES if module not in ("accumtrain", "accumtrain.__main__")]


def room_of(name: str) -> str:
    """accumtrain.engine.window -> engine."""
    _, room, *inside = name.split(".")
    return "kinds" if ".".join([room, *inside[:1]]) in KINDS else room


def imports(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """The dotted names that import statements, and calls in their place, name: of modules, or of what is in them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in IMPORTERS and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    """What importing the module runs: all but the bodies of functions, and what type checkers alone read."""
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (for_types or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield child
            yield from at_module_level(child)


def known_module(name: str) -> str | None:
    """The module of the package that a dotted name is, or is in."""
    while name not in FILES:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name


@cache
def loads(module: str) -> frozenset[str]:
    """The modules of the package that importing this one imports, this one aside."""
    return frozenset(filter(None, map(known_module, imports(at_module_level(TREES[module]))))) - {module}


@cache
def targets(module: str) -> tuple[str, ...]:
    """The texts "module:attribute" in a module."""
    texts = (node.value for node in ast.walk(TREES[module]) if isinstance(node, ast.Constant))
    return tuple(text for text in texts if isinstance(text, str) and TARGET.fullmatch(text))


def path_to_itself(start: str, module: str, seen: set[str]) -> list[str] | None:
    """A cycle of imports through `start`, if there is one from `module` on."""
    for other in loads(module):
        if other == start:
            return [module]
        if other not in seen:
            seen.add(other)
            if (rest := path_to_itself(start, other, seen)) is not None:
                return [module, *rest]
    return None


def test_every_file_is_in_a_room():
    assert {room_of(module) for module in INSIDE} == set(LEVELS)


@pytest.mark.parametrize("module", INSIDE)
def test_imports_run_downward(module):
    room = room_of(module)
    for name in imports(ast.walk(TREES[module])):
        if name.split(".")[0] == "accumtrain":
            other = room_of(f"{name}.")
            assert other in LEVELS, f"{module} imports {name}, not the module that defines it"
            assert other == room or LEVELS[other] > LEVELS[room], f"{module} imports {name}"


@pytest.mark.parametrize("module", INSIDE)
def test_no_module_imports_itself_by_way_of_others(module):
    assert path_to_itself(module, module, set()) is None


@pytest.mark.parametrize("module", [module for module in INSIDE if room_of(module) != "kinds"])
def test_code_is_named_by_a_text_only_in_rows_and_for_children(module):
    for target in targets(module):
        assert target.startswith(f"{module}:")
        assert f"TASK = {target!r}" in map(ast.unparse, TREES[module].body)


@pytest.mark.parametrize("module", INSIDE)
def test_modules_are_imported_by_name_only_in_the_tables(module):
    calls = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call) and called(node) in IMPORTERS]
    for call in calls if room_of(module) != "kinds" else ():
        (name,) = call.args
        assert isinstance(name, ast.Constant), "a text, so that it can be seen here"
        assert not name.value.startswith("accumtrain")


@pytest.mark.parametrize("target", sorted({target for module in INSIDE for target in targets(module)}))
def test_code_that_is_named_by_a_text_is_there(target):
    assert callable(load(target))


@pytest.mark.parametrize("module", [each for each in INSIDE if {room_of(each), each.partition(".")[2]} & LIGHT])
def test_what_a_command_imports_before_its_job_is_light(module):
    seen, waiting = {module}, [module]
    while waiting:
        current = waiting.pop()
        heavy = {name.split(".")[0] for name in imports(at_module_level(TREES[current]))} & HEAVY
        assert not heavy, f"{current} imports {heavy}"
        waiting += loads(current) - seen
        seen |= loads(current)


def test_what_is_light_is_there():
    names = {room_of(module) for module in INSIDE} | {module.partition(".")[2] for module in INSIDE}
    assert names >= LIGHT


def is_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text in a file; the mode that opens it, if there is one, is written out."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("open", "read_text", "write_text"):
        return False
    modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
    return call.func.attr != "open" or not call.args or any(set(str(mode)) <= set("rwxa+t") for mode in modes)


@pytest.mark.parametrize("module", FILES)
def test_text_is_utf8_whatever_the_locale(module):
    calls = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)]
    for call in filter(is_text, calls):
        assert "encoding" in {keyword.arg for keyword in call.keywords}, f"line {call.lineno}"


def parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Of a class those of its `__init__`, or its fields."""
    if isinstance(node, ast.ClassDef):
        inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if not inits:
            return {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        node = inits[0]
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


@pytest.mark.parametrize("module", FILES)
def test_what_a_docstring_calls_an_argument_is_one(module):
    """One name a line, or `make site` ends with an error."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
            described = re.findall(r"^ {4}\**(\S[^:]*):", section[1], re.MULTILINE) if section else []
            assert set(described) <= parameters(node), node.name


@pytest.mark.parametrize("module", FILES)
def test_a_file_is_one_idea(module):
    assert len(FILES[module].read_text().splitlines()) <= 500


def test_a_file_name_says_which_file():
    """But for the room of Keras, where people look for the names of Keras."""
    rooms = {
        (file.name, room_of(module)) for module, file in FILES.items() if file.stem not in ("__init__", "__main__")
    }
    assert not repeated(name for name, room in rooms if room != "keras")


def test_a_class_name_says_which_class():
    """But for the room of Keras, whose classes have the names of their kind in Keras."""
    assert not repeated(
        node.name
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and room_of(f"{module}.") != "keras"
    )


def repeated(names: Iterator[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def public_names() -> dict[str, str]:
    """The names of __init__.pyi, each with where it comes from."""
    statements = ast.parse((PACKAGE / "__init__.pyi").read_text()).body
    return {
        alias.asname: f"accumtrain.{statement.module}:{alias.name}"
        for statement in statements
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }


@pytest.mark.parametrize(("name", "target"), public_names().items())
def test_a_public_name_is_there(name, target):
    assert getattr(accumtrain, name) is load(target)


def test_all_public_names_are_declared():
    assert {*public_names(), "keras", "__version__"} == set(accumtrain.__all__)


def test_the_package_itself_imports_nothing_heavy():
    program = f"import sys, accumtrain; print(*{HEAVY | {'hydra'}} & set(sys.modules))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout == "\n"
