"""Metadata of the distribution; tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (HERE / "keras_ctxrep" / "__init__.py").read_text(encoding="utf-8").splitlines()
    if line.startswith("__version__")
)

# tensorflow-text must match TensorFlow's minor version; everything else is as loose as it works.
# 2.21.0 of tensorflow-text fails to import
TEXT = 'tensorflow-text>=2.21.1,<2.22; sys_platform != "win32"'
TF = ["tensorflow>=2.21,<2.22", TEXT, "keras>=3.13", "h5py>=3.11", "tqdm", "pyyaml", "filelock>=3.12"]
EDGE = ["ai-edge-litert>=2.3"]  # with the options of CompiledModel
CONVERT = ["safetensors>=0.4", "h5py>=3.11"]
HUB = ["keras-hub>=0.20", "huggingface-hub>=0.30"]
DEMO = ["scikit-learn>=1.3"]
PLOT = ["matplotlib>=3.8"]
BEAM = ["apache-beam>=2.70"]
DATA = ["tensorflow-datasets>=4.9", "importlib_resources"]  # the second is missing among its own requirements
SERVING = ["grpcio>=1.60", "protobuf>=5"]
SERVING_API = ["tensorflow-serving-api>=2.19"]  # the generated classes, which the tests compare ours with
# A real HTTP server in place of TF Serving, which is on no package index. It keeps protobuf below 7, psutil below 6 and
# pandas below 3, so it is no part of [dev].
SERVING_TEST = [*SERVING, *SERVING_API, "kserve>=0.15", "psutil"]
TESTS = ["pytest>=8", "pytest-xdist>=3.6", "filelock", "tensorboard", "jax", "seqeval", "scikit-learn", "scipy"]
DEV = [*TESTS, "build", "ruff>=0.9", "pyright>=1.1.390"]

setup(
    name="keras_ctxrep",
    version=VERSION,
    description="Contextual text representations in Keras: ELMo and BERT from raw text to TF Serving and TFLite",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11.4",  # with tarfile's filters
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
    install_requires=["numpy>=1.26", "tokenizers>=0.20", "tabulate>=0.9"],
    extras_require={
        "tf": TF,
        "edge": EDGE,
        "convert": CONVERT,
        "hub": HUB,
        "torch": ["torch>=2.10"],  # before, weights_only=True may run what is in a file
        "demo": DEMO + PLOT,
        "plot": PLOT,
        "data": DATA,
        "beam": TF + BEAM,
        "tensorboard": ["tensorboard"],
        "serving": SERVING,
        "serving-test": TF + SERVING_TEST,
        "dev": TF + EDGE + CONVERT + HUB + DEMO + PLOT + DATA + SERVING + SERVING_API + DEV,
    },
    package_data={
        "keras_ctxrep": ["py.typed", "zoo/weights/*/*/*", "demo/data/*", "demo/data/*/*", "*/*.html"],
        "keras_ctxrep_export": ["py.typed"],
        "keras_ctxrep_tflite": ["py.typed"],
        "keras_ctxrep_tflite.web": ["*"],
    },
    entry_points={"console_scripts": ["ctxrep = keras_ctxrep.cli.main:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
)
