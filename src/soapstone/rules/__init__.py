"""What part of its inputs each op needs: the notation, and the rules by family."""

from . import conv, dense, loss, norm, recurrent, shape
from .notation import Bound, Map, bind
from .table import POINTWISE, UNRULED, Call, Partial, Rule

RULES: dict[str, Rule] = {
    **dense.RULES,
    **conv.RULES,
    **recurrent.RULES,
    **norm.RULES,
    **loss.RULES,
    **shape.RULES,
}

__all__ = ["POINTWISE", "RULES", "UNRULED", "Bound", "Call", "Map", "Partial", "Rule", "bind"]
