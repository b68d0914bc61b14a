"""Images as files: headers, pixels, and what augmentation does to them."""
