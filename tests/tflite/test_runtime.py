import pytest
from keras_ctxrep_tflite import runtime


def test_files_without_a_bundle(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        runtime.load(tmp_path / "missing.tflite")
    (tmp_path / "a.tflite").write_bytes(b"TFL3" * 100)
    with pytest.raises(ValueError, match="no bundle in it"):
        runtime.load(tmp_path / "a.tflite")


def test_a_damaged_model_with_a_bundle(tmp_path):
    import zipfile

    from keras_ctxrep.text.bundle import Bundle

    path = tmp_path / "a.tflite"
    path.write_bytes(b"not a flatbuffer" * 100)
    with zipfile.ZipFile(path, "a") as archive:
        for name, data in Bundle("elmo", "classify", {"max_characters": 9}, 8, ("a", "b")).files_as_bytes().items():
            archive.writestr(name, data)
    with pytest.raises(ValueError, match="not a TFLite file"):
        runtime.load(path)
