"""Find fast strategies."""

from .search import INITIAL, Improvement, Progress, SearchResult, search

__all__ = ["INITIAL", "Improvement", "Progress", "SearchResult", "search"]
