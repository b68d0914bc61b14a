"""Texts as tokens: the vocabulary, the files, and the order by length."""
