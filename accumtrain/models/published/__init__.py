"""Published transformers: folders that PyTorch's transformers writes, as models with the tensors of the file."""
