"""Special tokens around texts, against the library tokenizers, and the files of tokenizers in folders."""

import json
import random

import numpy as np
import pytest

from accumtrain.data.text.template import Template, UnknownTemplateError, read_template
from accumtrain.data.text.vocabulary import Vocabulary, open_vocabulary
from accumtrain.errors import CheckpointError, ConfigError

tokenizers = pytest.importorskip("tokenizers")
processors = tokenizers.processors

WORDS = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
ENDS = ("[SEP]", 2), ("[CLS]", 1)
SPECIAL = [("[CLS]", 1), ("[SEP]", 2)]
CLS_PAIR = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}


def template(**parts):
    return processors.TemplateProcessing(special_tokens=SPECIAL, **parts)


PROCESSORS = {
    "none": None,
    "byte level": processors.ByteLevel(),
    "bert": processors.BertProcessing(*ENDS),
    "roberta": processors.RobertaProcessing(*ENDS),
    "template": template(**CLS_PAIR),
    "template after byte level": processors.Sequence([processors.ByteLevel(), template(**CLS_PAIR)]),
    "template at the end, other first": template(single="$A [SEP] [CLS]:2", pair="$B:3 [SEP] [SEP] $A:1"),
    "template of a single text": template(single="$A [SEP]"),
    "several tokens of one name": processors.TemplateProcessing(
        single="$A [END]",
        pair="$A [END] $B [END]:1",
        special_tokens=[{"id": "[END]", "ids": [2, 1, 2], "tokens": ["[SEP]", "[CLS]", "[SEP]"]}],
    ),
}


def make_tokenizer(post_processor=None):
    """A tokenizer of whole words, the word at place n has the id n."""
    model = tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[MASK]"])
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def save(tokenizer, file):
    tokenizer.save(str(file))
    return str(file)


def draw_text(draw):
    return " ".join(draw.choice("abc") for _ in range(draw.randint(1, 12)))


@pytest.mark.parametrize("kind", PROCESSORS)
@pytest.mark.parametrize("texts", [1, 2])
def test_texts_are_framed_and_cut_as_by_the_library(tmp_path, kind, texts):
    own = make_tokenizer(PROCESSORS[kind])
    vocabulary, draw = open_vocabulary(save(own, tmp_path / "tokenizer.json")), random.Random(0)
    assert vocabulary.framed == (kind not in ("none", "byte level"))
    for _ in range(300):
        given = [draw_text(draw) for _ in range(texts)]
        length = draw.randint(vocabulary.template.count_added(texts) + texts, 24)
        own.enable_truncation(length, strategy="longest_first")
        expected = own.encode(*given, add_special_tokens=True)
        ids, types = vocabulary.template.frame([np.array(vocabulary.encode(text)) for text in given], length)
        assert (ids.tolist(), types.tolist()) == (expected.ids, expected.type_ids)
        assert ids.dtype == types.dtype == np.int32


@pytest.mark.parametrize(("kind", "separates"), [("none", False), ("template of a single text", False), ("bert", True)])
def test_a_template_says_if_it_tells_two_texts_apart(kind, separates):
    post_processor = json.loads(make_tokenizer(PROCESSORS[kind]).to_str())["post_processor"]
    assert read_template(post_processor).separates == separates


ODD = {
    "two": (
        processors.Sequence([template(**CLS_PAIR), processors.BertProcessing(*ENDS)]),
        "its post-processor is several, TemplateProcessing and BertProcessing",
    ),
    "a text twice": (template(single="$A [SEP] $A"), "has A, A where A stand once"),
    "no text": (template(single="[CLS]"), "has no text where A stand once"),
    "a pair of one": (template(single="$A", pair="$A [SEP] $B $A"), "has A, B, A where A and B stand once"),
    "a large type": (template(single="$A:300"), "has the type 300, from 0..255"),
    "an id of no token": (
        processors.TemplateProcessing(single="[X] $A", special_tokens=[("[X]", 99)]),
        "its post-processor adds the id 99, and its ids are 0..6",
    ),
}


@pytest.mark.parametrize("how", ODD)
def test_a_template_that_is_not_understood_is_refused(tmp_path, how):
    post_processor, message = ODD[how]
    with pytest.raises(ConfigError, match=rf"tokenizer\.json can't be used: .*{message}; set post_processor"):
        open_vocabulary(save(make_tokenizer(post_processor), tmp_path / "tokenizer.json"))


def test_a_post_processor_of_another_kind_is_named():
    with pytest.raises(UnknownTemplateError, match="its post-processor is Other, and not TemplateProcessing"):
        read_template({"type": "Other"})


def test_special_tokens_are_those_of_the_template_too(tmp_path):
    tokenizer = make_tokenizer(processors.BertProcessing(("c", 6), ("b", 5)))
    vocabulary = open_vocabulary(save(tokenizer, tmp_path / "tokenizer.json"))
    assert vocabulary.special == (1, 2, 3, 5, 6)


def test_json_keeps_the_template_and_an_older_one_has_none(tmp_path):
    vocabulary = open_vocabulary(save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "tokenizer.json"))
    kept = json.loads(json.dumps(vocabulary.as_json()))
    assert kept["framed"] is True
    again = Vocabulary.from_json(kept, "inputs.vocabulary")
    assert (again, again.template) == (vocabulary, vocabulary.template)
    del kept["framed"]
    older = Vocabulary.from_json(kept, "inputs.vocabulary")
    assert older.template == Template()
    assert "framed" not in older.as_json()
    with pytest.raises(ConfigError, match=r"kept\.framed=true: must be false of kept\.tokenizer=bytes"):
        Vocabulary.from_json({**open_vocabulary("bytes").as_json(), "framed": True}, "kept")


def test_a_damaged_template_of_a_run_is_told(tmp_path):
    vocabulary = open_vocabulary(save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "tokenizer.json"))
    content = json.loads(vocabulary.tokenizer)
    content["post_processor"]["single"] *= 2
    damaged = Vocabulary.from_json({**vocabulary.as_json(), "tokenizer": json.dumps(content)}, "inputs.vocabulary")
    with pytest.raises(CheckpointError, match=r"the tokenizer of the run is damaged .*A stand once"):
        assert damaged.template
