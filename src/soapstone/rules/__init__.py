"""What part of its inputs each op needs: the notation, and the rules by family."""

from ..errors import GraphError
from . import conv, dense, loss, norm, pointwise, recurrent, shape
from .notation import Bound, Map, bind
from .table import POINTWISE, UNRULED, Call, Family, Lookup, Partial, Rule

RULES: dict[str, Rule] = {
    **dense.RULES,
    **conv.RULES,
    **recurrent.RULES,
    **norm.RULES,
    **loss.RULES,
    **shape.RULES,
    **pointwise.RULES,
}


def facts_of(kind: str) -> Rule:
    """What is special about an op, by its kind alone, as a graph has it: whether or not its rule fits the call. UNRULED
    where no table has it."""
    return RULES.get(kind, UNRULED)


def rule_for(call: Call, *, pointwise: bool) -> Rule:
    """The call's rule; UNRULED where there is none, or where it does not fit the call's shapes."""
    rule = RULES.get(call.kind) or (POINTWISE if pointwise else UNRULED)
    try:
        rule.bind(call)
    except (GraphError, KeyError, TypeError, ValueError):  # arguments that the rule does not know
        return UNRULED
    return rule


__all__ = [
    "POINTWISE",
    "RULES",
    "UNRULED",
    "Bound",
    "Call",
    "Family",
    "Lookup",
    "Map",
    "Partial",
    "Rule",
    "bind",
    "facts_of",
    "rule_for",
]
