"""Time against memory on the dial of model.memory=<MB>, beside everything stored (about a quarter of an hour a model).

    .venv/bin/python benchmarks/memory_dial.py                             # three models into docs/memory_dial.png
    .venv/bin/python benchmarks/memory_dial.py --model resnet50 --places 4 --repeats 3
    .venv/bin/python benchmarks/memory_dial.py --model keras:EfficientNetB0

224 px, float32, batch 16. At places of the dial, spread evenly over what is kept, micro-steps take turns with those of
the same weights stored. Memory is what a micro-step takes over what is always there; time is the median over the pairs.
"""

import argparse
import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from micro_step import MB, Images, Measured, MicroStep
from workbench import Table, by_rounds, compose, in_turn

from accumtrain.config.schema import Config
from accumtrain.models.config import ModelConfig, ResNetConfig
from accumtrain.models.resnet.kept_convs import list_by_worth

SHAPE, CLASSES, BATCH = (224, 224, 3), 1000, 16
MODELS = ("revnet104", "resnet50", "keras:EfficientNetB0")
OUTPUT = Path(__file__).parents[1] / "docs" / "memory_dial.png"


@dataclass(frozen=True)
class Point:
    """A place of the dial: MB, and seconds per those of stored."""

    mb: float
    time: float


def spread(model: ModelConfig, places: int) -> list[ModelConfig]:
    """Places of the dial before the last one, between which what is kept grows in about equal parts."""
    *dial, _ = model.memory_steps()
    sizes: Sequence[float] = range(len(dial))
    if isinstance(model, ResNetConfig):
        sizes = list(accumulate((place.values for place in list_by_worth(model)), initial=0))
    wanted = [sizes[-1] * part / (places - 1) for part in range(places)]
    return [dial[place] for place in sorted({_nearest(sizes, size) for size in wanted})]


def _nearest(sizes: Sequence[float], size: float) -> int:
    return min(range(len(sizes)), key=lambda place: abs(sizes[place] - size))


def curve(name: str, places: int, repeats: int) -> list[Point]:
    """Points of increasing memory, the stored one last."""
    kind, _, application = name.partition(":")
    config = compose(f"model={kind}", *[f"model.name={application}"] * bool(application), "optim=adafactor")
    table = Table(f"{name}: kept", "MB", "time")
    stored = warmed(replace(config, model=config.model.with_policy("store")))
    found: list[Point] = []

    def add(kept: str, measured: list[Measured], time: float) -> None:
        found.append(Point(max(each.bytes for each in measured) / MB, time))
        table.row(kept, f"{found[-1].mb:.0f}", f"{time:.3f}")

    for model in spread(config.model, places):
        run = warmed(replace(config, model=model))
        taken = in_turn({"stored": partial(stored.run, BATCH), "place": partial(run.run, BATCH)}, repeats)
        seconds = {side: [each.seconds for each in measured] for side, measured in taken.items()}
        add(model.kept_in_words, taken["place"], by_rounds(seconds["place"], seconds["stored"]))
        del run
        gc.collect()
    add("`store`", taken["stored"], 1.0)
    return found


def warmed(config: Config) -> MicroStep:
    run = MicroStep(config, Images(SHAPE, CLASSES))
    for _ in range(2):
        run.run(BATCH)
    return run


def draw(curves: dict[str, list[Point]], path: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for model, points in curves.items():
        *dial, stored = points
        (line,) = axis.plot([point.mb for point in dial], [point.time for point in dial], marker="o", label=model)
        axis.plot(stored.mb, stored.time, marker="s", color=line.get_color())
        axis.annotate("stored", (stored.mb, stored.time), xytext=(0, 6), textcoords="offset points", ha="center")
    axis.set_xlim(left=0)
    axis.set_xlabel(f"MB of activations, batch {BATCH}, {SHAPE[0]} px")
    axis.set_ylabel("time / time of stored")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(options: argparse.Namespace) -> None:
    curves = {model: curve(model, options.places, options.repeats) for model in options.model or MODELS}
    draw(curves, options.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--model", action="append", help="such as resnet50 or keras:ResNet50; may be given several times"
    )
    parser.add_argument("--places", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    main(parser.parse_args())
