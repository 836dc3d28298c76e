"""Text in, arrays out, and answers back: NumPy and `tokenizers` only, the same code for training and for the edge."""
