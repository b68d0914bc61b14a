"""What can be chosen: a table for each group, free of TensorFlow. A row is all that declares a choice.

`register` adds the rows of users: of their own program, or of an installed package.
"""
