"""The rooms of the package are layers, from the command line down to the errors, and imports run downward."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import accumtrain
from accumtrain.registry import load
from tests.programs import output_of

PACKAGE = Path(accumtrain.__file__).parent
LAYERS = [  # from the top; the members of a layer do not import each other
    {"cli"},
    {"keras", "loaded_run"},
    {"dispatch"},
    {"measure", "export"},
    {"train"},
    {"tasks"},
    {"models", "data", "devices"},
    {"pjrt"},
    {"engine"},
    {"optim", "backprop"},
    {"report"},
    {"runs"},
    {"process"},
    {"config"},
    {"registry"},
    {"fields", "progress"},
    {"console"},
    {"errors", "version"},
]
LEVELS = {room: level for level, layer in enumerate(LAYERS) for room in layer}
CORE = {"backprop", "engine", "optim"}  # computes from values, and knows no keys but its own
# What a command imports before its job begins; whole rooms, or modules of a room.
LIGHT = {
    *("cli", "report", "runs", "process", "config", "dispatch", "registry", "fields", "progress", "console", "errors"),
    *(f"measure.{name}" for name in ("auto_steps", "memory", "plan", "probe", "search", "settle", "tpu.plan")),
    *(f"measure.batch.{name}" for name in ("advice", "beginning", "branches", "check", "children", "job", "means")),
    *(f"measure.batch.{name}" for name in ("names", "results", "show", "training")),
    *("data.local_files", "train.hooks", "train.tell.remedies"),
}
WITH_TENSORFLOW = {"process.private"}  # in a light room, and imported where TensorFlow is
OPENING = re.compile(r"(What|Whether|Where|When|How|Which|Within)\b")  # of no docstring
MAX_FILES, MAX_LINES = 12, 600  # of a room, of a file
HEAVY = {"tensorflow", "keras", "numpy", "matplotlib", "jax"}
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
    return name.split(".")[1]


def has_keys(name: str) -> bool:
    """Whether a module is the config.py of a room, at any depth, or has the schedules, whose formulas are among keys.

    The room config is above all of them, and they are in its files named by texts.
    """
    module = known_module(name) or ""
    return room_of(f"{module}..") != "config" and (module.endswith(".config") or module == "accumtrain.optim.schedules")


def has_rows(module: str) -> bool:
    """Whether a module may name code as text."""
    return room_of(module) in ("config", "registry") or has_keys(module)


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
        if not (is_for_types(child) or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield child
            yield from at_module_level(child)


def for_types(module: str) -> set[str]:
    """The names that type checkers alone import."""
    return {*imports(ast.walk(TREES[module]))} - {*imports(without_types(TREES[module]))}


def without_types(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but what type checkers alone read."""
    for child in ast.iter_child_nodes(node):
        if not is_for_types(child):
            yield child
            yield from without_types(child)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "accumtrain"


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


def assert_none(offenders: Iterable[str]) -> None:
    """The message lists all of them, one a line."""
    found = sorted(offenders)
    assert not found, "\n".join(["", *found])


def assert_no_import(is_wrong: Callable[[str, str], bool]) -> None:
    """Of no module of the package, by its name and the one that it imports."""
    pairs = ((module, name) for module in INSIDE for name in imports(ast.walk(TREES[module])))
    assert_none(f"{module} imports {name}" for module, name in pairs if is_wrong(module, name))


def test_every_file_is_in_a_room():
    assert {room_of(module) for module in INSIDE} == set(LEVELS)


def test_imports_run_downward():
    def is_wrong(module: str, name: str) -> bool:
        of_all = has_keys(name) and (room_of(module) == "config" or name in for_types(module))
        return is_ours(name) and not of_all and not runs_downward(room_of(module), room_of(f"{name}."))

    assert_no_import(is_wrong)


def test_keys_know_only_keys_of_lower_rooms():
    """Readers of a published config.json know no more than keys do, and the keys of its model know them."""
    may = {"registry", "fields", "console", "errors"}
    published = "accumtrain.models.published."
    names = ("rules", "bert", "roberta", "distilbert", "rope", "gpt2", "llama", "vit", "known")
    readers = {f"{published}{name}" for name in ("architecture", "folder", *(f"families.{name}" for name in names))}

    def is_allowed(name: str) -> bool:
        return has_keys(name) or known_module(name) in readers or room_of(f"{name}.") in may

    assert_no_import(
        lambda module, name: (has_keys(module) or module in readers) and is_ours(name) and not is_allowed(name)
    )


def test_the_core_knows_no_configuration_but_its_own():
    def is_config(name: str) -> bool:
        return room_of(f"{name}.") == "config" or (has_keys(name) and room_of(f"{name}.") not in CORE)

    assert_no_import(lambda module, name: room_of(module) in CORE and is_ours(name) and is_config(name))


def test_only_the_dispatch_measures():
    """Training, evaluation and export import no measuring; `accumulate(model, "auto")` of Keras does."""
    may = {module for module in INSIDE if room_of(module) in ("measure", "dispatch")} | {"accumtrain.keras.auto_steps"}
    assert_no_import(
        lambda module, name: module not in may and name.startswith("accumtrain.measure.") and not has_keys(name)
    )


def test_what_is_not_public_of_tensorflow_is_named_in_one_file():
    private = ("tensorflow.python", "tensorflow.core", "tensorflow.compiler", "tensorflow.tsl")
    assert_no_import(lambda module, name: name.startswith(private) and module.partition(".")[2] not in WITH_TENSORFLOW)
    internal = re.compile(r"\btf\.__internal__|\btensorflow\.python\b")
    found = (module for module, file in FILES.items() if internal.search(file.read_text()))
    assert {module.partition(".")[2] for module in found} == WITH_TENSORFLOW


def test_a_room_has_few_files():
    folders = Counter(file.parent for file in FILES.values() if file.stem != "__init__")
    remedy = f"more than {MAX_FILES}: make a folder in it of those that share an idea"
    assert_none(f"{folder.name}: {number} files, {remedy}" for folder, number in folders.items() if number > MAX_FILES)


def runs_downward(room: str, other: str) -> bool:
    """False, too, for what is no room: a name is imported from the module that defines it."""
    return other == room or (other in LEVELS and LEVELS[other] > LEVELS[room])


def test_no_module_imports_itself_by_way_of_others():
    cycles = (path_to_itself(module, module, set()) for module in INSIDE)
    assert_none(" -> ".join([*cycle, cycle[0]]) for cycle in cycles if cycle)


def test_code_is_named_by_a_text_only_in_rows_and_for_children():
    assert_none(
        f"{module} names {target}"
        for module in INSIDE
        if not has_rows(module)
        for target in targets(module)
        if not target.startswith(f"{module}:") or f"TASK = {target!r}" not in map(ast.unparse, TREES[module].body)
    )


def test_devices_are_set_up_before_data_is_opened():
    """Which makes tensors, and so the devices that TensorFlow has by default."""
    opening = {"open_objective", "open_stored", "open_measured", "find_trained_on"}
    functions = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    both = 0
    for function in functions:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        order = sorted((call.lineno, called(call)) for call in calls if called(call) in {"resolve_devices", *opening})
        names = [name for _, name in order]
        if "resolve_devices" in names and opening.intersection(names):
            both += 1
            assert names[0] == "resolve_devices", function.name
    assert both >= 8


def test_modules_are_imported_by_name_only_in_the_tables():
    """Elsewhere by a text, so that it can be seen here, and none of ours."""
    assert_none(
        f"{module}, line {call.lineno}: {ast.unparse(call)}"
        for module in INSIDE
        if not has_rows(module)
        for call in calls(module)
        if called(call) in IMPORTERS and not is_text_of_others(call.args)
    )


def is_text_of_others(arguments: list[ast.expr]) -> bool:
    (name,) = arguments
    return isinstance(name, ast.Constant) and not name.value.startswith("accumtrain")


def calls(module: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call))


def test_code_that_is_named_by_a_text_is_there():
    assert_none(target for module in INSIDE for target in targets(module) if not callable(load(target)))


def test_what_a_command_imports_before_its_job_is_light():
    light = [
        module
        for module in INSIDE
        if (name := module.partition(".")[2]) not in WITH_TENSORFLOW
        and ({room_of(module), name} & LIGHT or has_keys(module))
    ]
    seen, waiting = set(light), light
    found = []
    while waiting:
        module = waiting.pop()
        heavy = {name.split(".")[0] for name in imports(at_module_level(TREES[module]))} & HEAVY
        found += [f"{module} imports {name}" for name in heavy]
        waiting += loads(module) - seen
        seen |= loads(module)
    assert_none(found)


def test_a_configuration_has_its_type():
    """A function takes a Config, or the parts of it that it needs."""
    assert_none(
        f"{module}, line {each.lineno}: {ast.unparse(each)}"
        for module, tree in TREES.items()
        for each in ast.walk(tree)
        if isinstance(each, ast.arg) and ast.unparse(each) == "config: Any"
    )


def test_what_is_light_is_there():
    names = {room_of(module) for module in INSIDE} | {module.partition(".")[2] for module in INSIDE}
    assert names >= LIGHT


def is_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text in a file; the mode that opens it, if there is one, is written out."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("open", "read_text", "write_text"):
        return False
    modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
    return call.func.attr != "open" or not call.args or any(set(str(mode)) <= set("rwxa+t") for mode in modes)


def test_text_is_utf8_whatever_the_locale():
    assert_none(
        f"{module}, line {call.lineno}: {ast.unparse(call)}"
        for module in FILES
        for call in calls(module)
        if is_text(call) and "encoding" not in {keyword.arg for keyword in call.keywords}
    )


def parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Of a class those of its `__init__`, or its fields."""
    if isinstance(node, ast.ClassDef):
        inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if not inits:
            return {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        node = inits[0]
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


def described(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """The names in the section `Args:` of a docstring."""
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
    return set(re.findall(r"^ {4}\**(\S[^:]*):", section[1], re.MULTILINE)) if section else set()


def test_what_a_docstring_calls_an_argument_is_one():
    """One name a line, or `make site` ends with an error."""
    assert_none(
        f"{module}, {node.name}: {name}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        for name in described(node) - parameters(node)
    )


def test_docstrings_open_with_a_verb_or_a_noun():
    assert_none(
        f"{module}, {getattr(node, 'name', 'the module')}: {docstring.splitlines()[0]}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        if OPENING.match(docstring := ast.get_docstring(node) or "")
    )


def test_a_file_is_one_idea():
    lengths = {module: len(file.read_text().splitlines()) for module, file in FILES.items()}
    assert_none(f"{module}: {length} lines" for module, length in lengths.items() if length > MAX_LINES)


def test_a_class_name_says_which_class():
    """But for the room of Keras, whose classes have the names of their kind in Keras."""
    classes = [
        (node.name, module)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and room_of(f"{module}.") != "keras"
    ]
    twice = repeated(name for name, _ in classes)
    assert_none(f"{name} of {module} has the name of another class" for name, module in classes if name in twice)


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


def test_every_public_name_is_there():
    assert_none(name for name, target in public_names().items() if getattr(accumtrain, name) is not load(target))


def test_all_public_names_are_declared():
    assert {*public_names(), "keras", "__version__"} == set(accumtrain.__all__)


def test_the_package_itself_imports_nothing_heavy():
    assert output_of("-c", f"import sys, accumtrain; print(*{HEAVY | {'hydra'}} & set(sys.modules))") == "\n"
