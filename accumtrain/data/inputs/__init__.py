"""Kinds of inputs: pixels, tokens, arrays. Each says how examples become a batch, and all that a run asks of them."""
