"""Accuracy and precision by class, the pairs that are confused, and pictures that can be read."""

from pathlib import Path

import numpy as np
import pytest

from accumtrain.report.classes import (
    ACROSS,
    LABELLED,
    ClassResult,
    Confusion,
    Mistake,
    Pair,
    draw_confusion,
    draw_mistakes,
)
from accumtrain.report.pictures import fit_class_names

SMALL = Confusion(["ant", "bee", "cat", "dog"], [[6, 2, 0, 0], [0, 0, 0, 0], [3, 0, 1, 0], [0, 0, 0, 5]])


def test_classes_lowest_accuracy_first():
    assert SMALL.classes == [
        ClassResult("cat", 4, 0.25, 1.0),
        ClassResult("ant", 8, 0.75, 6 / 9),
        ClassResult("dog", 5, 1.0, 1.0),
        ClassResult("bee", 0, None, 0.0),
    ]
    assert Confusion(["a", "b"], [[0, 2], [0, 1]]).classes[0] == ClassResult("a", 2, 0.0, None)


def test_pairs_highest_count_first():
    assert SMALL.confused(9) == [Pair(2, 0, 3, 0.75), Pair(0, 1, 2, 0.25)]
    assert SMALL.confused(1) == [Pair(2, 0, 3, 0.75)]


def texts_of(axes):
    named = (*axes.get_xticklabels(), *axes.get_yticklabels()) if axes.images and axes.texts else ()
    return [each for each in (*axes.texts, axes.title, *named) if each.get_text()]


@pytest.mark.parametrize("classes", [2, 10, LABELLED, LABELLED + 1, 1000])
def test_all_texts_are_in_the_picture(classes, drawn):
    names = [f"a rather long name $ of the class number {number}" for number in range(classes)]
    counts = np.random.default_rng(0).integers(0, 3, [classes, classes]) + 10**5 * np.eye(classes, dtype=int)
    figure = drawn(draw_confusion, Confusion(names, counts.tolist()), "a run, 9 examples")
    rounding = 4  # pixels
    for axes in figure.axes:
        for text in texts_of(axes):
            box = text.get_window_extent()
            assert min(box.x0, box.y0) >= -rounding, text
            assert box.x1 <= figure.bbox.x1 + rounding, text
            assert box.y1 <= figure.bbox.y1 + rounding, text


def test_of_many_classes_a_single_confusion_can_be_seen(drawn):
    counts = 10 * np.eye(1000, dtype=int)
    counts[17, 903] = 5
    figure = drawn(draw_confusion, Confusion([str(each) for each in range(1000)], counts.tolist()), "a run")
    cells = figure.axes[0].images[0].get_array()
    assert len(cells) == 250
    assert cells[17 // 4, 903 // 4] == pytest.approx(1 / 3)
    assert [each.get_text() for each in figure.axes[1].texts[3:]] == ["5 (33%)", "17", "903"]


@pytest.mark.parametrize("count", [1, ACROSS, ACROSS + 1])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_sheet_says_true_and_predicted(count, channels, drawn):
    mistakes = [Mistake(number, 0, 2, 2.302585, 0.75) for number in range(count)]
    figure = drawn(draw_mistakes, np.zeros([count, 9, 8, channels]), mistakes, [], SMALL.names)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.images]
    assert titles == count * ["true: ant (0.1)\npredicted: cat (0.75)"]


def test_a_sheet_names_the_files(drawn):
    mistakes = [Mistake(number, 0, 2, 2.302585, 0.75) for number in range(3)]
    files = [Path("photos/ant/1.png"), Path("photos/ant/the first of many photos of an ant.jpg"), Path("猫.png")]
    figure = drawn(draw_mistakes, np.zeros([3, 9, 8, 3]), mistakes, files, SMALL.names)
    first_lines = [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes if axes.images]
    assert first_lines == ["1.png", "the first of ...of an ant.jpg", ""]


def test_names_as_a_picture_can_show_them():
    names = ["ant", "猫", "a\nb", "  ", "a$b", "the same beginning and 1", "the same beginning and 2"]
    shown = fit_class_names(names, 20)
    assert shown == ["ant", "class 1", "class 2", "class 3", r"a\$b", "the same...ng and 1", "the same...ng and 2"]
