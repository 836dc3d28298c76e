"""The defaults of fine-tuning each family's encoders, and their sources; the command's help shows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Tuning", "default_texts"]

LORA_RATE = 10.0  # factor of the learning rate with low-rank updates; Hu et al. 2021, table 9: 4e-4 and 5e-4


@dataclass(frozen=True)
class Tuning:
    """The defaults of one family.

    Attributes:
        frozen: fine-tuning does not train the encoder, unless its weights are random.
        mix: heads read a scalar mix of all layers instead of the top one.
        mix_l2: L2 penalty on the weights of the mix.
        dropout: dropout rate on the input of the head or the task network.
        encoder_dropout: dropout rate inside an encoder that is trained; None: it has no dropout.
        epochs: passes over the data.
        learning_rate: function from the width to the peak learning rate.

    >>> TUNING["elmo"].frozen, TUNING["bert"].epochs, TUNING["bert"].learning_rate(768)
    (True, 3.0, 3e-05)
    """

    frozen: bool = False
    mix: bool = False
    mix_l2: float = 0.0
    dropout: float = 0.5
    encoder_dropout: float | None = 0.1
    epochs: float = 10.0
    learning_rate: Callable[[int], float] = lambda width: 1e-3


# Peters et al. 2018, sections 3.2 and 3.3: a frozen biLM, and a scalar mix of its layers with an L2 penalty
ELMO = Tuning(frozen=True, mix=True, mix_l2=1e-3)
# Devlin et al. 2018, appendix A.3. Narrower models learn at higher rates: 5e-4 at width 256, 1e-3 at 128 and below
BERT = Tuning(dropout=0.1, epochs=3.0, learning_rate=lambda width: min(1e-3, 3e-5 * max(1.0, 768 / width) ** 2.5))
STATIC = Tuning(encoder_dropout=None)
# Howard & Ruder 2018, sections 3.2 and 3.3: trained as a whole, and its head reads the mean and the maximum of the
# text; the mix is ELMo's. Radford et al. 2018, section 4.1: 3 epochs, 6.25e-5 at width 768
LM = Tuning(
    mix=True,
    mix_l2=1e-3,
    dropout=0.1,
    epochs=3.0,
    learning_rate=lambda width: min(1e-3, 6.25e-5 * max(1.0, 768 / width) ** 2),
)
TUNING: Mapping[str, Tuning] = {"elmo": ELMO, "bert": BERT, "static": STATIC, "lm": LM}  # for the command's help


def default_texts() -> dict[str, str]:
    """The defaults that depend on the encoder, by option, as the help shows them.

    >>> default_texts()["epochs"]
    'elmo 10, bert 3, static 10, lm 3'
    """
    rates = []
    for name, tuning in TUNING.items():
        narrow, *wider = [f"{tuning.learning_rate(width):.3g}" for width in (128, 256, 768)]
        widths = "" if {narrow} == {*wider} else f" at width 128, {wider[0]} at 256, {wider[1]} at 768"
        rates.append(f"{name} {narrow}{widths}")
    frozen = [name for name, tuning in TUNING.items() if tuning.frozen]
    mixed = [name for name, tuning in TUNING.items() if tuning.mix]
    return {
        "freeze": f"for {', '.join(frozen)}",
        "mix": f"for {', '.join(mixed)}",
        "epochs": ", ".join(f"{name} {tuning.epochs:g}" for name, tuning in TUNING.items()),
        "learning_rate": f"{', '.join(rates)}; with lora {LORA_RATE:g} times as much",
    }
