"""Tables: rows that name or hold examples, and columns of their targets."""
