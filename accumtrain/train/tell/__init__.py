"""The words of a training: its summary, remedies of a failure, trackers."""
