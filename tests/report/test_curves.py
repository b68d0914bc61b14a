"""Pictures of learning curves stay readable, whatever the number of runs and the range of values."""

import pytest

from accumtrain.report.pictures import COLOURS, NAMED, draw_curves, scale_axis


def records(*splits):
    return [{"step": step, "split": split, "loss": 1 / step} for split in splits for step in (1, 2)]


def runs(count):
    names = [f"revnet38-digits-accum.steps-{n}-batch_size-{256 * n}-optim-adafactor-optim.lr-0.1" for n in range(count)]
    return {name: records("train", "test") for name in names}


@pytest.mark.parametrize("count", [1, 2, 16, 50])
def test_the_legend_covers_no_curve(count, drawn):
    figure = drawn(draw_curves, runs(count))
    legend = figure.legends[0].get_window_extent()
    assert all(not legend.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert legend.y0 >= 0
    assert legend.x1 <= figure.bbox.x1


@pytest.mark.parametrize(("count", "curves"), [(COLOURS, 2 * COLOURS), (COLOURS + 1, COLOURS + 1)])
def test_of_many_runs_the_evaluations_are_drawn(count, curves, drawn):
    assert len(drawn(draw_curves, runs(count)).axes[0].lines) == curves


def test_many_runs_without_an_evaluation_are_drawn(drawn):
    figure = drawn(draw_curves, {str(number): records("train") for number in range(NAMED + 3)})
    assert len(figure.axes[0].lines) == NAMED + 3
    assert figure.legends[0].get_texts()[-1].get_text() == "3 others"


def test_the_noise_scale_has_an_axis_of_its_own_behind_all_metrics(drawn):
    metrics = dict.fromkeys(("accuracy", "top5", "f1", "map"), 0.5)
    evaluated = [record | metrics for record in records("val")]
    noises = [record | {"noise_scale": scale} for record, scale in zip(records("train"), (None, 30.0), strict=True)]
    noises.append({"step": 3, "split": "train", "noise_scale": 900.0})
    figure = drawn(draw_curves, {"with": [*noises, *evaluated], "without": [*records("train"), *evaluated]})
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "accuracy", "top5", "f1", "noise_scale"]
    (line,) = figure.axes[-1].lines
    assert line.get_xydata().tolist() == [[2, 30], [3, 900]], "an update without a scale has no point"
    assert figure.axes[-1].get_yscale() == "log"


@pytest.mark.parametrize(("count", "scale"), [(1, None), (COLOURS + 1, 30.0)])
def test_a_noise_scale_that_is_not_drawn_has_no_axis(count, scale, drawn):
    noises = [record | {"noise_scale": scale} for record in records("train")]
    figure = drawn(draw_curves, {str(number): [*noises, *records("val")] for number in range(count)})
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss"]


@pytest.mark.parametrize("values", [[26.7, 28.2], [1, 1], [3, 2000], [0.5, 12], [1e-9, 1e9], [-1, 5], [0, 1]])
@pytest.mark.parametrize("base", [2, 10])
def test_there_are_numbers_at_the_axis(base, values):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.plot([1, 2], values)
    scale_axis(axes, "y", values, base)
    low, high = axes.get_ylim()
    labels = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len([text for text in labels if text]) >= 2
