"""Plan for machines that are not alike: a node of four H100s and one of eight A100s. It needs neither.

python examples/mixed_cluster.py [MODEL] [TOPOLOGY] [PROPOSALS]
"""

import sys
from collections import Counter, defaultdict

import soapstone as ss


def describe(name: str, simulation: ss.Simulation) -> None:
    """The time of an iteration, and how busy each kind of device is."""
    devices = simulation.topology.devices
    busy: dict[str, float] = defaultdict(float)
    for device in devices:
        busy[device.kind] += simulation.busy[device.name]
    counts = Counter(device.kind for device in devices)
    shares = ", ".join(f"{kind} {busy[kind] / counts[kind]:.0%} busy" for kind in counts)
    print(f"{name:<20}{simulation.makespan * 1e3:8.2f} ms   {shares}")


def main(model: str = "rnnlm", machines: str = "h100:1x4+a100:1x8", proposals: str = "1000") -> None:
    topology = ss.Topology.parse(machines)
    graph = ss.capture(ss.zoo.load(model, batch=16 * topology.num_devices), chunk=10)
    found = ss.search(graph, topology, proposals=int(proposals)).strategy
    describe("data parallelism", ss.simulate(graph, topology, ss.baselines.data_parallel(graph, topology)))
    describe("searched", ss.simulate(graph, topology, found))

    used = Counter(topology.devices[device].kind for op in found.values() for device in op.devices)
    print("parts:", ", ".join(f"{count} on {kind}" for kind, count in used.items()))
    print("The first node alone:")
    alone = ss.Topology.parse(machines.split("+")[0])
    describe("data parallelism", ss.simulate(graph, alone, ss.baselines.data_parallel(graph, alone)))
    describe("searched", ss.simulate(graph, alone, ss.search(graph, alone, proposals=int(proposals)).strategy))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ss.SoapstoneError as error:
        sys.exit(f"mixed_cluster: {error}")
