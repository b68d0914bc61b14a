"""U-Nets, plain and reversible: a class for each pixel (Ronneberger et al. 2015, arXiv:1505.04597)."""
