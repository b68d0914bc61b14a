"""job=batch: from a checkpoint of a run, branches with other batches."""
