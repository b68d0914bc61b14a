"""Tables of what can be chosen, one for each config group, without TensorFlow. One row declares one choice.

`register` adds rows from a user's program or from an installed package.
"""
