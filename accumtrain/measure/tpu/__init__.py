"""job=plan for a TPU that is not there: the program, lowered and compiled."""
