"""A hook of MkDocs: files outside docs/ that its pages link to are pages of the site, too.

A link stands as it works in the repository, such as ../examples/serving.py, and becomes one of the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)[^)#\s]+")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sbatch": "bash"}  # of programs, each shown on a page of its own


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what a page links to, what that links to, and so on."""
    waiting = [f"docs/{uri}" for uri in files.src_uris if uri.endswith(".md")]
    while waiting:
        path = waiting.pop()
        linked = [target_of(path, link) for link in LINK.findall((ROOT / path).read_text())]
        for other in linked if path.endswith(".md") else ():
            if (ROOT / other).is_file() and uri_of(other) not in files.src_uris:
                files.append(File.generated(config, uri_of(other), content=text_of(other)))
                waiting.append(other)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links to files of the repository into links to their pages. MkDocs names those that lead nowhere."""
    uri = page.file.src_uri
    here = uri if page.file.generated_by else f"docs/{uri}"

    def in_site(match: re.Match[str]) -> str:
        path = target_of(here, match[0])
        return relpath(uri_of(path), PurePosixPath(uri).parent) if (ROOT / path).is_file() else match[0]

    return LINK.sub(in_site, markdown)


def target_of(path: str, link: str) -> str:
    """The file of the repository to which a link in another one leads."""
    return normpath(PurePosixPath(path).parent / link)


def uri_of(path: str) -> str:
    """docs/keras.md -> keras.md, SECURITY.md -> SECURITY.md, examples/serving.py -> examples/serving.py.md."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def text_of(path: str) -> str:
    text = (ROOT / path).read_text()
    return text if path.endswith(".md") else f"# {path}\n\n```{LANGUAGES[Path(path).suffix]}\n{text}```\n"
