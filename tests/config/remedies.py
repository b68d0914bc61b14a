"""The remedies in a message, and commands that follow each of them to the letter."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

KEY = r"[a-z_0-9]+(?:[./][a-z_0-9]+)*"
WORD = rf"""(?:\+\+)?{KEY}=(?:"'[^"]*'"|\[[^\]]*\]|\{{[^}}]*\}}|[^\s,;?)]+)|'{KEY}=\S+|~{KEY}|-m\b"""
VERB = r"(?:\b(?:as in|add|use|set|choose|write|give|twice:)|example|such as|are with|(?:steps|them|is|one),|;|, or)"
SAID = re.compile(rf"{VERB} ((?:{WORD})(?: (?:{WORD}))*)(?! gives)")
NAMES = re.compile(
    r"did you mean (?P<meant>[^?]+)\?|choose from (?P<choices>[^;\n]+?)(?:, or [^;]*)?(?:;|$)"
    r"|choose (?P<two>\w+ or \w+)$|must be (?P<value>true|balanced)\b|, or (?P<word>auto)$"
    r"|: must be at least (?P<least>[\d.]+)"
    r"|(?:for example|write) (?P<example>\[[^\]]+\]|v\w+:\w+|\d+:\d\d:\d\d)"
)
FILLED = {"<number>": "4", "<value>": "1", "<key>": "epochs"}

Run = Callable[..., tuple[int, str]]  # exit code and message of a command


def is_accepted(run: Run, command: Sequence[str], wrong: str, steps: int = 2) -> bool:
    """Return whether a command of a remedy is accepted, or is refused for something else, which has a remedy.

    A rule that another key breaks, without a remedy of its own, counts as something else.

    Args:
        wrong: the key that the remedy is for.
    """
    code, message = run(*command)
    if code in (0, 6):  # 6: the rule is met, and the memory is not enough
        return True
    followed = remedied(command, message)
    if not followed:
        return wrong_key(message) != wrong
    return steps > 0 and any(is_accepted(run, each, wrong, steps - 1) for each in followed)


def wrong_key(message: str) -> str:
    """Return the key, or the word, that a message begins with."""
    return re.match(r"[~+]*([^=:; ]*)", message)[1]  # type: ignore[index]


def remedied(command: Sequence[str], message: str) -> list[list[str]]:
    """Return the command as each remedy of the message changes it."""
    for blank, value in FILLED.items():
        message = message.replace(blank, value)
    wrong = wrong_key(message)
    subject = next((each for each in command if wrong in (each, _key(each))), command[-1])
    changed = [_in_place(command, subject, name, message) for name in _names(message) if "[" not in wrong]
    in_its_place = re.search("a number is|is a group of keys|in its place", message)
    for words in _words(message):
        replaced = [each for each in command if each != subject] if in_its_place else command
        changed.append(_with_words(replaced, words))
    changed += [_without(command, key) for key in _left_out(message, wrong)]
    if "set one of them to 0" in message:
        changed += [_with_words(command, [f"{key}=0"]) for key in re.findall(rf"({KEY})=", message)[:2]]
    changed += [
        _with_words(command, [f"{key}=other"]) for key in ("run.name", "run.dir") if f"another {key}" in message
    ]
    if "write it without quotes" in message:
        changed.append([each.replace("'", "") for each in command])
    return [each for each in changed if each != list(command)]


def _names(message: str) -> Iterator[str]:
    """Yield the names or values that are offered in the place of a wrong one; of a long list the first two."""
    for found in NAMES.finditer(message):
        for text in filter(None, found.groups()):
            yield from re.split(", | or ", text)[:2] if not text.startswith("[") else [text]


def _words(message: str) -> Iterator[list[str]]:
    """Yield the overrides that are to be added, or to stand in the place of others of their key."""
    for found in re.finditer(r"nearest: ([\d, ]+)", message):
        yield from ([f"batch_size={size}"] for size in found[1].split(", "))
    for found in re.finditer(r"a number is (\S+)", message):
        yield [found[1]]
    for found in SAID.finditer(message.partition(": ")[2] or message):
        yield shlex.split(found[1].rstrip("."))


def _left_out(message: str, wrong: str) -> Iterator[str]:
    for found in re.finditer(r"leave (\S+?)(?:=\S+)? out", message):
        yield wrong if found[1] == "it" else found[1]
    if "leave one of the two out" in message:
        yield from re.findall(rf"({KEY})=", message)[:2]


def _in_place(command: Sequence[str], subject: str, name: str, message: str) -> list[str]:
    """Return the command with `name` in the place of the value of `subject`, or of its key if that is unknown."""
    key, _, value = subject.partition("=")
    new = f"{key}={name}"
    if "=" in name:
        new = name
    elif "no such key" in message:
        group = "" if "." in name else key.rpartition(".")[0]
        new = f"{group}.{name}={value}".lstrip(".")
    return [new if each == subject else each for each in command]


def _with_words(command: Sequence[str], words: Sequence[str]) -> list[str]:
    keys = {_key(word) for word in words if "=" in word}
    return [*(each for each in command if _key(each) not in keys), *words]


def _without(command: Sequence[str], key: str) -> list[str]:
    return [each for each in command if _key(each) != key and not _key(each).startswith(f"{key}.")]


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
