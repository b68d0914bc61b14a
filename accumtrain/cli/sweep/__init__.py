"""A sweep: its jobs, its folder, its table."""
