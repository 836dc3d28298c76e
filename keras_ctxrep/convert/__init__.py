"""Published weights to our models and back: a table of names per format, with nothing left over on either side."""
