"""What a simulation says, for people and their tools."""

from .breakdown import Breakdown, breakdown_of
from .choices import Choice, Comparison, compared
from .layers import Fold, Layer, folds_of, layers_of
from .page import write_page
from .payload import Approach, Report, payload_of
from .simplest import KNOWN_ERROR, Simplest, simplest_within
from .trace import Happening, save_events, save_trace
from .words import closing, lasting, placed, sentence, sooner, summary, telling, titled, traffic

__all__ = [
    "KNOWN_ERROR",
    "Approach",
    "Breakdown",
    "Choice",
    "Comparison",
    "Fold",
    "Happening",
    "Layer",
    "Report",
    "Simplest",
    "breakdown_of",
    "closing",
    "compared",
    "folds_of",
    "lasting",
    "layers_of",
    "payload_of",
    "placed",
    "save_events",
    "save_trace",
    "sentence",
    "simplest_within",
    "sooner",
    "summary",
    "telling",
    "titled",
    "traffic",
    "write_page",
]
