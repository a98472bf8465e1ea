"""A module for each claim, in the paper's order."""

from . import (
    accuracy,
    against_optcnn,
    breakdown,
    case_studies,
    convergence,
    exactness,
    global_optimum,
    local_optimum,
    placement,
    profiling,
    rivals,
    runtime,
    search_time,
    special_cases,
    throughput,
    training,
)

_MODULES = (
    special_cases, exactness, profiling, accuracy, throughput, breakdown, placement, against_optcnn, search_time,
    convergence, global_optimum, local_optimum, training, case_studies, runtime, rivals,
)  # fmt: skip
CLAIMS = tuple(module.CLAIM for module in _MODULES)
