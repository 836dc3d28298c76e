"""Contextual text representations in Keras, from raw text to TF Serving and TFLite.

Importing this package costs nothing: it loads neither Keras nor TensorFlow. Import what you need:

    keras_ctxrep.text      tokens, features, bundle, predictor          NumPy and `tokenizers` only
    keras_ctxrep.layers    CharCNN, ProjectedLSTM, ScalarMix, ...       Keras
    keras_ctxrep.models    elmo, bert, heads: functions -> keras.Model  Keras
    keras_ctxrep.training.pipeline  text -> tf.data                              TensorFlow
    keras_ctxrep.train     fit, save, load                              TensorFlow
    keras_ctxrep.convert   published weights in and out                 Keras

Axes are letters, the same in every file:

    B batch   T tokens   W characters per word   D width   H heads   N layers   V vocabulary   C classes
    P masked positions per example

and `mask` is int32, 1 at a real token, 0 at padding.
"""

__version__ = "0.2.0"
