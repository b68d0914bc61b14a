"""Images with a mask, which has a class for each pixel: files, arrays, values."""
