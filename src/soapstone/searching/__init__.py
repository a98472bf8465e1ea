"""Find fast strategies: by Markov chains, by OptCNN's dynamic programming, by going through all of a small space; and
in `reinforce`, which alone needs torch, by reinforcement learning."""

from .interrupts import interrupts
from .least_sums import optcnn
from .mcmc import check_arguments, search
from .outcome import Improvement, Progress, SearchResult
from .problem import Problem
from .proof import Proof, ProofProgress, exhaustive
from .starts import INITIAL
from .tying import tied_layers

__all__ = [
    "INITIAL",
    "Improvement",
    "Problem",
    "Progress",
    "Proof",
    "ProofProgress",
    "SearchResult",
    "check_arguments",
    "exhaustive",
    "interrupts",
    "optcnn",
    "search",
    "tied_layers",
]
