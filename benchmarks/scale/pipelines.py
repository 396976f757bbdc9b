"""How long a pipeline takes whose stages run one forward, then one backward."""

from __future__ import annotations

from collections.abc import Iterator


def one_forward_one_backward(
    forward: list[float], backward: list[float], micro_batches: int, passed: float
) -> float:
    """Seconds of a pipeline's step, of which each stage has its seconds for a micro-batch."""
    stages = len(forward)
    orders = [list(_order(stages - stage, micro_batches)) for stage in range(stages)]
    done: dict[tuple[int, str, int], float] = {}
    now = [0.0] * stages
    left = sum(map(len, orders))
    while left:
        for stage, order in enumerate(orders):
            while order:
                kind, number = order[0]
                other = stage - 1 if kind == "forward" else stage + 1
                is_first = not 0 <= other < stages
                if not is_first and (other, kind, number) not in done:
                    break
                ready = 0.0 if is_first else done[other, kind, number] + passed
                seconds = (forward if kind == "forward" else backward)[stage]
                now[stage] = done[stage, kind, number] = max(now[stage], ready) + seconds
                order.pop(0)
                left -= 1
    return max(now)


def _order(ahead: int, micro_batches: int) -> Iterator[tuple[str, int]]:
    """What a stage does with ``ahead`` stages from it to the last."""
    first = min(ahead, micro_batches)
    yield from (("forward", number) for number in range(first))
    for number in range(micro_batches):
        yield "backward", number
        if first + number < micro_batches:
            yield "forward", first + number
