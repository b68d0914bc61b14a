"""Inputs of your own in one file: a number from other numbers, on the whole command line.

`data=table data.number_columns=[*]` reads such tables, too; this shows how it is done.

Each row of a CSV file is an example. Its first row names the columns, and the last column is the number to learn.

    python examples/table_of_numbers.py task=regress data=rows data.path=houses.csv model=mlp run.name=houses
    python examples/table_of_numbers.py job=evaluate run.name=houses
    python examples/table_of_numbers.py job=predict run.name=houses predict.input=new_houses.csv
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import accumtrain  # before TensorFlow, whose log lines it hides

# isort: split
import numpy as np


@dataclass(kw_only=True)
class RowsConfig(accumtrain.DataConfig):
    """Rows of numbers, the last of which is to be learned.

    `path`: the CSV file.
    `test_every`: every so many rows, one is a test example.
    """

    path: Annotated[str, accumtrain.Role.PLACE] = "rows.csv"
    test_every: Annotated[int, accumtrain.Role.RULE] = 5


def read_rows(path):
    with Path(path).open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        return names, np.loadtxt(file, delimiter=",", dtype=np.float32, ndmin=2)


def open_rows(config, seed):
    names, rows = read_rows(config.path)
    is_test = np.arange(len(rows)) % config.test_every == 0
    train, test = (accumtrain.ArraySplit(part[:, :-1], part[:, -1:]) for part in (rows[~is_test], rows[is_test]))
    learned = rows[~is_test, :-1]
    mean, std = tuple(learned.mean(0).tolist()), tuple((learned.std(0) + 1e-6).tolist())
    inputs = Rows((len(names) - 1,), mean=mean, std=std)
    return accumtrain.Source(train, test, 1, class_names=names[-1:], inputs=inputs)


@accumtrain.register_inputs
@dataclass(frozen=True)
class Rows(accumtrain.Arrays):
    """Rows of numbers, standardised by those to train on. The run keeps the fields."""

    kind = "rows"

    def open_named(self, named, config, key):
        rows = np.concatenate([read_rows(path)[1] for path in named])
        names = [f"row {number}" for number in range(1, len(rows) + 1)]
        return accumtrain.Asked(names, self.open_array(rows, config), ignored=[])


accumtrain.register_data("rows", open_rows, RowsConfig, targets="numbers")

if __name__ == "__main__":
    accumtrain.main()
