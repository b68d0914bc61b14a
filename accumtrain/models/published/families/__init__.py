"""The families of published models: each reads the architecture that its config.json describes."""
