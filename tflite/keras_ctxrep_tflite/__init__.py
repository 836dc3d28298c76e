"""TFLite: `quantize` writes .tflite files (TensorFlow), `runtime` runs them (no TensorFlow), `compare` measures both."""
