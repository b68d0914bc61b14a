"""The keys of a run and their rules."""
