"""Tasks that learn a class for each position: of pixels, or of words."""
