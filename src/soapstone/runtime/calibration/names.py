"""The names of the measured numbers, as keys and in messages."""


def message(a: int, b: int, size: int) -> str:
    return f"{size:,} bytes from rank {a} to {b}"


def overhead(a: int, b: int) -> str:
    return f"each of a burst from rank {a} to {b}"


def all_reduce(ranks: tuple[int, ...], size: int) -> str:
    return f"a sum of {size:,} bytes among ranks {', '.join(map(str, ranks))}"


def one_way_out(node: int) -> str:
    return f"what all ranks of node {node} send at once to another node"


def out_and_in(node: int) -> str:
    return f"what all ranks of node {node} send to another node and receive from it at once"
