"""An encoder by itself: its answer to a text is a vector."""

from keras_ctxrep.tasks.similar import Similar

__all__ = ["Embed"]


class Embed(Similar):
    """No weights: the vector of a text is pooled from the encoder's outputs, as the bundle says.

    What `Similar` trains is such a model; any encoder is measured by its metrics.
    """

    name = "embed"
    help = "a vector"
    page = ("Which sentences are like a query?", "It ranks the sentences of a text by cosine similarity to a query")
    mediapipe = "TextEmbedder"
