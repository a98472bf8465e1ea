"""Find fast strategies: by Markov chains, by OptCNN's dynamic programming, by going through all of a small space."""

from .additive import optcnn
from .mcmc import INITIAL, Improvement, Progress, SearchResult, search
from .proof import Proof, ProofProgress, exhaustive

__all__ = [
    "INITIAL",
    "Improvement",
    "Progress",
    "Proof",
    "ProofProgress",
    "SearchResult",
    "exhaustive",
    "optcnn",
    "search",
]
