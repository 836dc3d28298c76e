"""Where the packages lie: a search and further names at once, for which pyproject.toml has no form."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["keras_ctxrep*"]),
        "keras_ctxrep_export",
        "keras_ctxrep_tflite",
        "keras_ctxrep_tflite.web",  # no Python in it
    ],
    package_dir={
        "keras_ctxrep_export": "export/keras_ctxrep_export",
        "keras_ctxrep_tflite": "tflite/keras_ctxrep_tflite",
        "keras_ctxrep_tflite.web": "tflite/web",
    },
)
