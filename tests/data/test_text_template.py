"""Special tokens around texts, against the library tokenizers, and the files of tokenizers in folders."""

import json
import random

import numpy as np
import pytest

from accumtrain.data.text.template import Template, UnknownTemplateError, read_template
from accumtrain.data.text.vocabulary import Vocabulary, open_vocabulary
from accumtrain.errors import CheckpointError, ConfigError
from tests.data.word_tokenizer import CLS_PAIR, make_tokenizer, save, template

tokenizers = pytest.importorskip("tokenizers")
processors = tokenizers.processors

ENDS = ("[SEP]", 2), ("[CLS]", 1)

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
    with pytest.raises(ConfigError, match=r"kept\.end=5: must be left out of kept\.tokenizer=bytes"):
        Vocabulary.from_json({**open_vocabulary("bytes").as_json(), "end": 5}, "kept")
    with pytest.raises(ConfigError, match=r"kept\.end=7: must be below kept\.size=7"):
        Vocabulary.from_json({**vocabulary.as_json(), "end": 7}, "kept")


def test_a_damaged_template_of_a_run_is_told(tmp_path):
    vocabulary = open_vocabulary(save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "tokenizer.json"))
    content = json.loads(vocabulary.tokenizer)
    content["post_processor"]["single"] *= 2
    damaged = Vocabulary.from_json({**vocabulary.as_json(), "tokenizer": json.dumps(content)}, "inputs.vocabulary")
    with pytest.raises(CheckpointError, match=r"the tokenizer of the run is damaged .*A stand once"):
        assert damaged.template


# ---- the folders of published models ----

BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "e"]
LINES = ["the cat sat", "a cat and a hat", "they sit there", "é € 🙂"]


def write_bert(folder, words=BERT_WORDS, **settings):
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


def write_roberta(folder, mask="<mask>"):
    folder.mkdir()
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES * 3, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", mask])
    trained.save_model(str(folder))
    return str(folder)


def test_a_folder_with_the_library_s_file(tmp_path):
    (tmp_path / "model").mkdir()
    file = save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "model" / "tokenizer.json")
    write_bert(tmp_path / "bert")
    (tmp_path / "model" / "vocab.txt").write_text("one\n")
    assert open_vocabulary(str(tmp_path / "model")) == open_vocabulary(file)


def frame(vocabulary, *texts):
    ids, types = vocabulary.template.frame([np.array(vocabulary.encode(text)) for text in texts], 100)
    return ids.tolist(), types.tolist()


def test_a_folder_with_vocab_txt_is_a_bert(tmp_path):
    vocabulary = open_vocabulary(write_bert(tmp_path / "bert"))
    assert (vocabulary.size, vocabulary.mask, vocabulary.special) == (10, 4, (0, 1, 2, 3, 4))
    expected = [2, 5, 6, 7, 8, 3], [0] * 6
    assert frame(vocabulary, "The cats sat") == expected
    assert frame(vocabulary, "the", "cat [MASK]") == ([2, 5, 3, 6, 4, 3], [0, 0, 0, 1, 1, 1])
    assert vocabulary.encode("É") == [9], "an accent is stripped where texts are lower-cased"


@pytest.mark.parametrize(
    ("words", "settings", "ids"),
    [
        (BERT_WORDS, {}, [5, 9]),
        (BERT_WORDS, {"do_lower_case": False}, [1, 1]),
        (BERT_WORDS, {"strip_accents": False}, [5, 1]),
        ([*BERT_WORDS, "The"], {}, [10, 1]),
        ([*BERT_WORDS, "The"], {"do_lower_case": True}, [5, 9]),
    ],
)
def test_the_folder_or_else_its_tokens_say_if_texts_are_lower_cased(tmp_path, words, settings, ids):
    folder = write_bert(tmp_path / "bert", words, **settings)
    assert open_vocabulary(folder).encode("The É") == ids
    (tmp_path / "bert" / "config.json").write_text('{"do_lower_case": true, "model_type": "bert"}')
    by_config = [5, 9] if "do_lower_case" not in settings and "strip_accents" not in settings else ids
    assert open_vocabulary(folder).encode("The É") == by_config, "tokenizer_config.json counts first"


def test_a_folder_with_vocab_json_is_a_roberta(tmp_path):
    vocabulary = open_vocabulary(write_roberta(tmp_path / "roberta"))
    own = tokenizers.ByteLevelBPETokenizer.from_file(
        *(str(tmp_path / "roberta" / name) for name in ("vocab.json", "merges.txt"))
    )
    assert (vocabulary.mask, vocabulary.special) == (4, (0, 1, 2, 3, 4))
    for text in LINES:
        assert vocabulary.encode(text) == own.encode(text).ids
        assert vocabulary.decode(vocabulary.encode(text)) == text
    first, second = vocabulary.encode("the"), vocabulary.encode("cat")
    ids, types = frame(vocabulary, "the", "cat")
    assert ids == [0, *first, 2, 2, *second, 2]
    assert not any(types)


def test_the_mask_of_a_roberta_takes_the_blanks_before_it(tmp_path):
    vocabulary = open_vocabulary(write_roberta(tmp_path / "roberta"))
    expected = [*vocabulary.encode("the"), vocabulary.mask, *vocabulary.encode(" sat")]
    own = tokenizers.Tokenizer.from_str(vocabulary.tokenizer)
    for text in ("the <mask> sat", "the<mask> sat", "the   <mask> sat"):
        assert vocabulary.encode(text) == own.encode(text, add_special_tokens=False).ids == expected
        assert vocabulary.encode_with_masks(text) == expected
        assert vocabulary.encode_with_masks(text.replace("<mask>", "[MASK]")) == expected


def test_add_prefix_space_is_that_of_the_folder(tmp_path):
    folder = write_roberta(tmp_path / "roberta")
    plain = open_vocabulary(folder)
    (tmp_path / "roberta" / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert open_vocabulary(folder).encode("cat") == plain.encode(" cat") != plain.encode("cat")


def break_bert(folder, file, content):
    write_bert(folder)
    (folder / file).write_text(content)


BAD_FOLDERS = {
    "no file": (
        lambda folder: folder.mkdir(),
        "is a folder without tokenizer.json, nor vocab.txt, nor vocab.json with",
    ),
    "one of two": (
        lambda folder: (write_roberta(folder), (folder / "merges.txt").unlink()),
        "is a folder without tokenizer.json, nor vocab.txt, nor vocab.json with merges.txt: save the tokenizer as",
    ),
    "an empty file": (lambda folder: break_bert(folder, "tokenizer.json", ""), "tokenizer.json is empty: give the"),
    "a broken link": (
        lambda folder: (write_bert(folder), (folder / "tokenizer.json").symlink_to("absent")),
        "tokenizer.json is a link to a file that is not there: give the",
    ),
    "a folder as a file": (
        lambda folder: (write_bert(folder), (folder / "tokenizer.json").mkdir()),
        "tokenizer.json is a directory: give the",
    ),
    "no bert": (lambda folder: write_bert(folder, ["<s>", "the"]), r"vocab.txt is no file .*lacks \[UNK\] and \[CLS\]"),
    "no text": (
        lambda folder: (write_bert(folder), (folder / "vocab.txt").write_bytes(b"\xff\xfe")),
        "vocab.txt is no file of the library tokenizers",
    ),
    "odd settings": (
        lambda folder: write_bert(folder, do_lower_case="yes"),
        "tokenizer_config.json: do_lower_case=yes: must be true or false",
    ),
    "deep settings": (
        lambda folder: break_bert(folder, "tokenizer_config.json", "[" * 100_000),
        "tokenizer_config.json: it is nested more than 50 deep",
    ),
    "merges of another vocabulary": (
        lambda folder: (write_roberta(folder), (folder / "merges.txt").write_text("#version: 0.2\nq q\n")),
        "vocab.json with .*merges.txt is no file of the library tokenizers",
    ),
    "no roberta": (
        lambda folder: (write_roberta(folder), (folder / "vocab.json").write_text('{"a": 0}')),
        "lacks <s> and </s>; save the tokenizer as tokenizer.json",
    ),
}


@pytest.mark.parametrize("how", BAD_FOLDERS)
def test_a_bad_folder_is_told_by_its_file(tmp_path, how):
    write, message = BAD_FOLDERS[how]
    write(tmp_path / "model")
    with pytest.raises(ConfigError, match=rf"data\.tokenizer={tmp_path}/model.*{message}"):
        open_vocabulary(str(tmp_path / "model"))


def test_a_file_that_does_not_fit_in_memory_is_not_read(tmp_path, monkeypatch):
    folder = write_bert(tmp_path / "bert")
    monkeypatch.setattr("accumtrain.data.text.tokenizer_files.spare_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match=r"vocab\.txt takes up to .* while it is read, .* of memory are free"):
        open_vocabulary(folder)
