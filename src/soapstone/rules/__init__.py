"""What part of its inputs each op needs: the notation, and the rules by family."""

from ..errors import GraphError
from . import conv, dense, loss, norm, pointwise, recurrent, shape
from .notation import Bound, Map, bind
from .table import CAST, POINTWISE, UNRULED, Call, Partial, Rule

RULES: dict[str, Rule] = {
    **dense.RULES,
    **conv.RULES,
    **recurrent.RULES,
    **norm.RULES,
    **loss.RULES,
    **shape.RULES,
    **pointwise.RULES,
}


def rule_for(call: Call, *, pointwise: bool) -> Rule:
    """The call's rule; UNRULED where there is none, or where it does not fit the call's shapes."""
    rule = RULES.get(call.kind) or (POINTWISE if pointwise else UNRULED)
    try:
        rule.bind(call)
    except (GraphError, KeyError, TypeError, ValueError):  # arguments that the rule does not know
        return UNRULED
    return rule


__all__ = [
    "CAST",
    "POINTWISE",
    "RULES",
    "UNRULED",
    "Bound",
    "Call",
    "Map",
    "Partial",
    "Rule",
    "bind",
    "rule_for",
]
