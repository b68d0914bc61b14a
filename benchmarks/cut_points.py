"""What model.memory=recompute holds of each classifier of keras.applications, counted: docs/cut_points.md.

    .venv/bin/python benchmarks/cut_points.py                      # all of them, at 224 pixels, in some minutes
    .venv/bin/python benchmarks/cut_points.py --only ResNet50 VGG16

It follows from the shapes of the tensors, so nothing is trained.
"""

from __future__ import annotations

import argparse

from workbench import Table

from accumtrain.models.keras.cuts import join_cheapest, list_pieces

SIDE = 224  # pixels
ALONE_IS_NO_CUT = "NASNet"  # in these only two tensors together are a cut point


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="MODEL")
    only = parser.parse_args().only
    import keras  # takes a second, which --help has no use for

    builders = {name: build for name, build in vars(keras.applications).items() if name[0].isupper()}
    unknown = set(only) - builders.keys()
    if unknown:
        parser.error(f"keras.applications has no {', '.join(sorted(unknown))}")
    table = Table("model", "cut points", "segments", "share, %")
    for name, build in builders.items():
        if only and name not in only:
            continue
        chain = list_pieces(
            build(weights=None, input_shape=(SIDE, SIDE, 3)), width=2 if name.startswith(ALONE_IS_NO_CUT) else 1
        )
        ends, worst = join_cheapest(chain)
        share = worst / sum(piece.inner for piece in chain)
        table.row(name, len(chain), len(ends), f"{100 * share:.0f}")
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
