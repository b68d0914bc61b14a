"""Targets as people store them."""
