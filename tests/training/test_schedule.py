from dataclasses import fields

import pytest

from keras_ctxrep.options import Fit
from keras_ctxrep.training.schedule import DECAYS, learning_rate


@pytest.mark.parametrize(
    ("decay", "at_half", "at_end"),
    [("linear", 0.5, 0.0), ("cosine", 0.5, 0.0), ("inverse_sqrt", (0.2 / 0.6) ** 0.5, 0.2**0.5), ("none", 1.0, 1.0)],
)
def test_decays_of_the_learning_rate(decay, at_half, at_end):
    """Halfway between the end of the warm-up and that of the run, and at the end."""
    rates = {completed: learning_rate(completed, 1.0, 0.2, decay) for completed in (0.1, 0.2, 0.6, 1.0)}
    assert rates == pytest.approx({0.1: 0.5, 0.2: 1.0, 0.6: at_half, 1.0: max(at_end, 1e-3)})


def test_every_decay_is_an_option():
    option = next(entry for entry in fields(Fit) if entry.name == "decay")
    assert sorted(DECAYS) == sorted(option.metadata["range"].choices)


def test_a_run_without_a_warm_up_begins_at_the_peak():
    assert learning_rate(0.0, 0.5, warmup=0.0, decay="none") == 0.5
    assert learning_rate(0.0, 0.5, warmup=0.1) == pytest.approx(0.5 * 0.01)
