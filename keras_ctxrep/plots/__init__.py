"""Pictures: scalar mixes, attention, words in context, engines."""
