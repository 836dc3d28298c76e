"""SavedModels for TF Serving: `saved_model` writes, loads and checks them, `signatures` is what they can be asked,
`text_ops` is the text preparation inside them."""
