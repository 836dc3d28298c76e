"""Settings that must be made before TensorFlow is imported, and the fixtures that every room shares."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import pytest
import tensorflow as tf

# Two logical devices, for MirroredStrategy(["CPU:0", "CPU:1"]).
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture
def rng() -> np.random.Generator:
    """A random generator with a fixed seed; Keras' initializers are seeded too."""
    keras.utils.set_random_seed(0)
    return np.random.default_rng(0)
