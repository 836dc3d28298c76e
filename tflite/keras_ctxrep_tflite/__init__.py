"""TFLite: `quantize` writes .tflite files (TensorFlow), `runtime` runs them (without it), `compare` measures both."""
