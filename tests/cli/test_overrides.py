"""Texts on the command line: a key that takes text gets what was typed, whatever Hydra would read in it."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from accumtrain.cli.overrides import for_hydra, quote_text

AS_TYPED = [
    *("1e3", "2024_01_01", "007", "-5", "1.50", "nan", "inf", "true", "False", "off", "1:30:00", "x y", "null2"),
    *("it's", "'tis", 'a"b', "a=b", "a(1)", "(1)", "a#b", "a;b&c", "a!", "a<b>", "a^b", "`a`", "a[1]", "a{1}"),
    *("café", "日本", "~a", "a~b", "a\\b", "$HOME", "%d", "a@b", "a|b", "*.jpg", "a.b-c_d/e:f+g?"),
]


def read(argument):
    """The value that Hydra reads in an argument of the command."""
    (override,) = OverridesParser.create().parse_overrides(for_hydra([argument]))
    return override.value()


@pytest.mark.parametrize("text", AS_TYPED)
def test_a_text_is_taken_as_it_was_typed(text):
    assert read(f"data.path={text}") == text


@pytest.mark.parametrize("text", ["1e3", "it's", "café", "a(1)"])
def test_a_job_gets_the_text(command, seen, text):
    assert command(f"predict.input={text}", f"report.runs=[a, {text}]", "run.name=2024_01_01").code == 0
    (config,) = seen
    assert (config.predict.input, config.report.runs, config.run.name) == (text, ["a", text], "2024_01_01")


def test_a_sweep_over_texts(command, fake_job):
    seen = fake_job(lambda config: {"status": "completed"})
    assert command("-m", "run.name=1e3,2024_01_01,true").code == 0
    assert [config.run.name for config in seen] == ["1e3", "2024_01_01", "true"]


@pytest.mark.parametrize(
    "argument",
    [
        *("run.name='1e3'", 'run.name="a,b"', "run.name=null", "run.name=${run.seed}", "run.name=choice(a,1)"),
        *("run.seed=1e1", "model.units=[1,2]", "~run.name", "--cfg"),
    ],
)
def test_what_was_written_for_hydra_is_left(argument):
    assert for_hydra([argument]) == [argument]


@pytest.mark.parametrize("text", ["a", "it's", "\\", "a\\", "a\\'", "\\\\'b", "'", "[a,b]", "{a"])
def test_a_quoted_text_is_read_back(text):
    assert read(f"model.weights={quote_text(text)}") == text


@pytest.mark.parametrize("text", ["{a", "[it's", "[ab]*.jpg", "\\'", "${", "{a`b$c!"])
def test_a_text_that_cannot_be_read_is_told_how_to_quote(command, refused, seen, text):
    (argument,) = shlex.split(refused(f"export.output={text}").strip().partition("; quote it twice: ")[2])
    assert command(argument).code == 0
    assert seen[0].export.output == text


def test_a_list_of_texts_that_cannot_be_read_is_told_how_to_quote_each(command, refused, seen):
    message = refused("data=table", "data.path=t.csv", "data.label_column=[größe,two words]")
    (argument,) = shlex.split(message.strip().partition("; quote each text of the list: ")[2])
    assert command("data=table", "data.path=t.csv", argument).code == 0
    assert seen[0].data.label_column == ["größe", "two words"]


@pytest.mark.parametrize("names", ['{"a;b":5.0}', "{'a':5.0}", "{rød:5.0}"])
def test_names_that_a_mapping_can_not_have(refused, names):
    """To quote it twice makes a text of it, which is no mapping."""
    message = refused(f"loss.class_weights={names}")
    assert "names in a mapping have no quotes" in message
    assert "quote it twice" not in message


@pytest.mark.parametrize("place", [0, 2, 4])
def test_options_stand_anywhere(command, seen, own_file, place):
    own_file("model/tiny.yaml", "")
    words = ["data=digits", "model=lenet5", "batch_size=32", "run.name=x"]
    words[place:place] = ["--config-dir", "own"]
    assert command(*words).code == 0
    assert (seen[0].model.label, seen[0].batch_size, seen[0].run.name) == ("lenet5", 32, "x")
