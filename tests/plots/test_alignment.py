"""Where a decoder looked, as a picture."""

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.inference.keras_engine import predictor_of
from keras_ctxrep.plots.alignment import alignment
from tests.tasks.test_translate import bundle_of, random_model

pytest.importorskip("matplotlib")


def test_the_weights_of_an_answer(tmp_path):
    bundle = bundle_of(beams=1)
    model = random_model(bundle, seed=5)
    saving.save(tmp_path / "model", model, bundle)
    drawn = alignment(tmp_path / "model", "tack", tmp_path / "a.png")
    (answer,) = predictor_of(model, bundle)(["tack"])
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert drawn["text"] == answer["text"] and drawn["read"] == ["·", "t", "a", "c", "k"]
    assert drawn["tokens"] == [token["token"] for token in answer["alignment"]]
    np.testing.assert_allclose(drawn["attention"].sum(1), 1, atol=1e-5)
    best = [1 + int(row[1:].argmax()) for row in drawn["attention"]]
    assert [place - 1 for place in best] == [token["start"] for token in answer["alignment"]]


def test_errors(tmp_path, models):
    with pytest.raises(ValueError, match="an alignment is of a model that writes texts"):
        alignment(models / "bert" / "classifier", "a text", tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"\.png"):
        alignment(models / "bert" / "classifier", "a text", tmp_path / "a.txt")
    bundle = bundle_of()
    saving.save(tmp_path / "model", random_model(bundle), bundle)
    with pytest.raises(ValueError, match="longer than the 16 tokens"):
        alignment(tmp_path / "model", "t" * 40, tmp_path / "a.png")
    with pytest.raises(ValueError, match="nothing in it"):
        alignment(tmp_path / "model", "", tmp_path / "a.png")
