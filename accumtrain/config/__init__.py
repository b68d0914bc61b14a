"""The configuration: `schema` names the keys of a run, `convert` reads a mapping, `rules` checks the values.

YAML in conf/ holds the values. `from_mapping` turns what Hydra composed into a `Config` once; everything below the
command line sees dataclasses only. No TensorFlow here.
"""
