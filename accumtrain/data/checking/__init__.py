"""job=check: examples, their targets, and those that repeat."""
