"""The families of published models, and what their config.json may say."""
