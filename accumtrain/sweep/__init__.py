"""Sweeps: a folder in which jobs leave their outcomes, jobs in processes of their own, and what compares them."""
