"""Corpus db: a SQLite database of about 560 MB, and the same with 2 % of its rows updated in place at random.

The rows are lines of real source text, taken from a source tree such as corpus src. The same tree, Python's random
numbers and SQLite give the same bytes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".c", ".h", ".rst")
TEXT_SIZE_MAX = 330_000_000  # characters
UPDATED_ONE_IN = 50
SEED = 1

SCHEMA = """
create table file(id integer primary key, path text, size int);
create table line(id integer primary key, file int, no int, body text);
"""
# Edits of the same length, as those of a status or counter column would be.
UPDATE = "update line set body = ? || substr(body, 9) where id = ? and length(body) >= 8"


def open_unsafely(path: Path) -> sqlite3.Connection:
    """Without journal and fsync: a database that fails to be made is made again."""
    database = sqlite3.connect(path)
    database.execute("pragma page_size=4096")
    database.execute("pragma journal_mode=off")
    database.execute("pragma synchronous=off")
    return database


def source_texts(root: Path, numbers: random.Random) -> Iterator[tuple[str, str]]:
    """Relative path and text of the source files under `root`, in random order."""
    paths = sorted(str(path) for path in root.rglob("*") if path.name.endswith(SUFFIXES) and not path.is_dir())
    numbers.shuffle(paths)
    for path in paths:
        try:
            # open() as is: it turns every kind of line end into one.
            with open(path, encoding="latin-1") as file:
                text = file.read()
        except OSError:  # a link that leads nowhere
            continue
        yield str(Path(path).relative_to(root)), text


def make_first(root: Path, path: Path, numbers: random.Random) -> int:
    """Fill a new database from the tree `root`; returns its number of lines."""
    database = open_unsafely(path)
    database.executescript(SCHEMA)
    size = count = 0
    for number, (name, text) in enumerate(source_texts(root, numbers), 1):
        database.execute("insert into file values(?, ?, ?)", (number, name, len(text)))
        rows = [(number, place, line) for place, line in enumerate(text.split("\n")) if line.strip()]
        database.executemany("insert into line(file, no, body) values(?, ?, ?)", rows)
        size += len(text)
        count += len(rows)
        if size > TEXT_SIZE_MAX:
            break
    database.execute("create index line_file on line(file,no)")
    database.commit()
    database.close()
    return count


def make_second(first: Path, path: Path, count: int, numbers: random.Random) -> None:
    """Copy the first database and update a share of its `count` lines."""
    shutil.copyfile(first, path)
    chosen = numbers.sample(range(1, count + 1), count // UPDATED_ONE_IN)
    database = open_unsafely(path)
    database.executemany(UPDATE, ((f"{numbers.getrandbits(32):08x}", number) for number in chosen))
    database.commit()
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="a source tree, such as FOLDER/src/v1")
    parser.add_argument("folder", type=Path, help="gets db/v1/app.sqlite and db/v2/app.sqlite")
    arguments = parser.parse_args()
    first, second = (arguments.folder / "db" / version / "app.sqlite" for version in ("v1", "v2"))
    for path in (first, second):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    numbers = random.Random(SEED)
    make_second(first, second, make_first(arguments.source, first, numbers), numbers)


if __name__ == "__main__":
    main()
