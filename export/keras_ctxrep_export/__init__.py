"""SavedModels for TF Serving: `saved_model` writes and loads them, `text_ops` is the text preparation inside them."""
