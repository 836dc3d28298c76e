"""Predictions through any engine: Keras, SavedModel, a server, LiteRT."""
