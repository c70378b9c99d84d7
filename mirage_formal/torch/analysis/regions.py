"""Graph partitioning of a torch graph: maximal convex subgraphs of the operators that can be imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set


def convex_parts(order: Sequence[str], reads: Mapping[str, Sequence[str]], taken: Set[str]) -> list[list[str]]:
    """Partition the taken nodes into convex parts that can be scheduled one by one among the other nodes.

    Args:
        order: All nodes, in topological order.
        reads: For each node, the given nodes that it reads.
        taken: Nodes to partition.

    Returns:
        The parts, each in order. No path from a part to itself leads outside. Two parts that are connected, directly or
        by a tensor that both read, cannot be one part.

    Sound: a node's level counts the largest number of changes from taken nodes to others on a path to it. On a path
    levels never fall, and behind a taken node they rise at the next node that is not taken. So a path between two taken
    nodes of one level meets taken nodes of that level only, and these are connected. Parts are joined only if no path
    leads from one over a node of neither to the other.
    """
    level: dict[str, int] = {}
    for node in order:
        rises = [level[n] + (n in taken and node not in taken) for n in reads[node] if n in level]
        level[node] = max(rises, default=0)
    parts: dict[str, int] = {}
    members: list[list[str]] = []
    seen: dict[tuple[int, str], int] = {}  # the part that reads a tensor, by level and tensor
    for node in (n for n in order if n in taken):
        near = {parts[n] for n in reads[node] if n in parts and level[n] == level[node]}
        near |= {seen[level[node], n] for n in reads[node] if (level[node], n) in seen}
        number = min(near, default=len(members))
        if number == len(members):
            members.append([])
        members[number].append(node)
        for other in sorted(near - {number}):
            members[number] += members[other]
            members[other] = []
        for member in members[number]:
            parts[member] = number
        seen.update({(level[node], n): number for n in reads[node] if n not in taken})
        seen.update({key: number for key, part in seen.items() if part in near})
    place = {node: i for i, node in enumerate(order)}
    found = [sorted(part, key=place.__getitem__) for part in members if part]
    return _merge_parts(order, reads, found)


def _merge_parts(order: Sequence[str], reads: Mapping[str, Sequence[str]], parts: list[list[str]]) -> list[list[str]]:
    place = {node: i for i, node in enumerate(order)}
    number = 0
    while number < len(parts):
        part = set(parts[number])
        inputs = {n for node in part for n in reads[node]}
        for other in range(number + 1, len(parts)):
            beside = {n for node in parts[other] for n in reads[node]}
            linked = not inputs.isdisjoint(parts[other]) or not beside.isdisjoint(part) or not inputs.isdisjoint(beside)
            if linked and _is_convex(order, reads, part | set(parts[other])):
                parts[number] = sorted((*parts[number], *parts.pop(other)), key=place.__getitem__)
                number = -1
                break
        number += 1
    return parts


def _is_convex(order: Sequence[str], reads: Mapping[str, Sequence[str]], part: Set[str]) -> bool:
    """Return whether a part is convex: no path leaves it and returns to it."""
    beyond: set[str] = set()
    for node in order:
        if node in part:
            if not beyond.isdisjoint(reads[node]):
                return False
        elif not beyond.isdisjoint(reads[node]) or not part.isdisjoint(reads[node]):
            beyond.add(node)
    return True


__all__ = ["convex_parts"]
