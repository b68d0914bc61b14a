"""`accumtrain.fit`: a compiled Keras model in the engine, with its data, as a run."""
