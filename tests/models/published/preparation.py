"""What prepares the inputs of small folders: tokenizers of a few words and letters, and keys of images."""

from __future__ import annotations

from itertools import chain, product
from pathlib import Path
from string import ascii_lowercase as LETTERS  # noqa: N812 - a constant
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ("the", "cat", "sat")
START, PADDING, END, UNKNOWN, MASK = "<s>", "<pad>", "</s>", "<unk>", "<mask>"  # of roberta; the mask is the last id


def write_tokenizer(file: Path, family: str, vocabulary: int) -> None:
    """Write a tokenizer.json of so many tokens: WordPiece, byte-level BPE, or Unigram, as the family has.

    That of gpt2 puts nothing around texts, that of llama a token before them, and neither has a mask.

    It knows WORDS and the letters a to z; what else there is becomes the unknown token.
    """
    makers = {"roberta": _bpe, "xlm-roberta": _unigram, "gpt2": _plain_bpe, "llama": _begun_bpe}
    make = makers.get(family, _word_piece)
    tokenizer: Tokenizer = make(vocabulary)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(f"a vocabulary of {vocabulary} tokens holds no {tokenizer.get_vocab_size()}")
    tokenizer.save(str(file))


def preprocessor_keys(family: str, image: int) -> dict[str, Any]:
    """Return the keys of preprocessor_config.json. Images of deit are resized larger and cut at their centre."""
    keys = {"do_normalize": True, "do_rescale": True, "do_resize": True, "rescale_factor": 1 / 255}
    if family == "vit":
        half = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 2}
        return keys | half | {"image_processor_type": "ViTImageProcessor", "size": {"height": image, "width": image}}
    larger = image * 8 // 7
    cut = {"do_center_crop": True, "crop_size": {"height": image, "width": image}, "resample": 3}
    of_imagenet = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    return (
        keys
        | of_imagenet
        | cut
        | {"image_processor_type": "DeiTImageProcessor", "size": {"height": larger, "width": larger}}
    )


def _word_piece(vocabulary: int) -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    more = (f"##{first}{second}" for first, second in product(LETTERS, LETTERS))
    pieces = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS, *more][:vocabulary]
    tokenizer = Tokenizer(models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def _bpe(vocabulary: int) -> Tokenizer:
    tokenizer = _plain_bpe(vocabulary, MASK)
    tokenizer.post_processor = processors.RobertaProcessing((END, 2), (START, 0), add_prefix_space=False)
    return tokenizer


def _begun_bpe(vocabulary: int) -> Tokenizer:
    tokenizer = _plain_bpe(vocabulary)
    begun = processors.TemplateProcessing(
        single=f"{START} $A", pair=f"{START} $A {START}:1 $B:1", special_tokens=[(START, 0)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begun])
    return tokenizer


def _plain_bpe(vocabulary: int, *last: str) -> Tokenizer:
    """Return a tokenizer without a post-processor, whose last tokens are given."""
    tokens = [START, PADDING, END, UNKNOWN, "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}", *LETTERS]
    merges: dict[str, tuple[str, str]] = {}
    of_words = [(word[:end], word[end]) for word in WORDS for end in range(1, len(word))]
    for pair in chain(of_words, product(LETTERS, LETTERS)):
        if len(tokens) + len(merges) < vocabulary - len(last):
            merges.setdefault("".join(pair), pair)
    numbers = {token: place for place, token in enumerate([*tokens, *merges, *last])}
    tokenizer = Tokenizer(models.BPE(numbers, [*merges.values()], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, *last)
    return tokenizer


def _unigram(vocabulary: int) -> Tokenizer:
    space = "\N{LOWER ONE EIGHTH BLOCK}"
    pieces = [(piece, 0.0) for piece in (START, PADDING, END, UNKNOWN)]
    pieces += [(f"{space}{word}", -1.0) for word in WORDS] + [(letter, -3.0) for letter in (space, *LETTERS)]
    pieces += [("".join(pair), -5.0) for pair in product(LETTERS, LETTERS)]
    tokenizer = Tokenizer(models.Unigram([*pieces[: vocabulary - 1], (MASK, 0.0)], unk_id=3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", pair=f"{START} $A {END} {END} $B {END}", special_tokens=[(START, 0), (END, 2)]
    )
    _add_special(tokenizer, MASK)
    return tokenizer


def _add_special(tokenizer: Tokenizer, *masks: str) -> None:
    """Tell which tokens of roberta are special. Its mask takes the space before it."""
    masked = [AddedToken(mask, lstrip=True, special=True) for mask in masks]
    tokenizer.add_special_tokens([START, PADDING, END, UNKNOWN, *masked])
