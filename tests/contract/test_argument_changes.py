"""What `build` does to the containers and objects that it is given reaches the caller."""

import collections
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchgraph as tg
from tests.cases.plays import Play, base, of
from tests.cases.table import Case
from tests.contract.models import Function, Train, data, made, same
from tests.contract.test_objects import Data, Named, Plain, Slotted, batches
from torchgraph.testing import counters


def added(d):
    d["y"] = d["x"] * 2
    return d["y"].sum()


def moved(d):
    d["z"] = d.pop("x")
    d["other"] = d["z"]
    return d["z"] + 1


def nested(d):
    d["inner"]["list"].append(d["x"] + 1)
    d["inner"]["number"] = 5
    d["new"] = {"a": [d["x"] * 3], "inner": d["inner"]}


def emptied(d):
    del d["x"]
    d["inner"]["list"].clear()


def reordered(d):
    d["x"] = d.pop("x") + 1
    return list(d)


def written_and_moved(d):
    d["x"].mul_(2)
    d["kept"], d["x"] = d["x"], d["x"] + 1
    return d["kept"] * 1


def handed_back(d):
    d["y"] = d["x"] * 2
    return d


def inside(d):
    return {"whole": d, "inner": d["inner"], "x": d["x"] + 1}


def given(x):
    return {"x": x.clone(), "inner": {"list": [x * 5], "number": 3}}


def attribute(o):
    o.y, o.x = o.x * 2, None
    o.count = 3
    del o.scale
    return o.y + 1


def slot(o):
    o.unset, o.x = o.x * 2, o.x
    return o.unset


def item(o):
    dict.__setitem__(o, "y", o["x"] + 1)
    o.again = o["y"] * 2
    return o


def rotated(o):
    o.rotate(1)
    o.append(o[0] + 1)
    return o.popleft() * 1


def joined(o):
    o.add(next(iter(o)) * 2)
    return len(o)


def stored(o):
    o.y = o.x * 2
    return o.y + 1


def extended(o):
    o[1:] = [o[0] * 2, "text"]
    o.insert(0, None)
    return o


CHANGES = [added, moved, nested, emptied, reordered, written_and_moved, handed_back, inside]
KINDS: dict[str, tuple[Any, Any, Any]] = {
    **{change.__name__: (given, change, dict) for change in CHANGES},
    "attributes": (Plain, attribute, vars),
    "slots": (Slotted, slot, lambda o: [o.x, o.unset]),
    "dict with attributes": (Named, item, lambda o: [dict(o), vars(o)]),
    "deque": (lambda x: collections.deque([x, x + 1, x + 2], maxlen=3), rotated, list),
    "set": (lambda x: {x}, joined, lambda o: sorted(o, key=lambda t: t.sum().item())),
    "store": (Data, stored, lambda o: o.store.mapping),
    "list": (lambda x: [x, x, 3], extended, list),
}


def objects(value: Any) -> list[Any]:
    """Containers and tensors in it, itself first."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    parts = [one for item in items for one in objects(item)]
    return [value, *parts] if not isinstance(value, int) else parts


def places(value: Any, known: list[Any]) -> list[Any]:
    """Which of the known objects lie where in it."""
    return [next((n for n, one in enumerate(known) if one is it), None) for it in objects(value)]


@pytest.mark.parametrize("name", KINDS)
def test_what_build_does_to_any_object_reaches_the_caller(name):
    make, change, look = KINDS[name]
    graph, found = Function(change), []
    with counters.expect(captures=1, replays=3):
        for x in batches():
            one, two = make(x.clone()), make(x.clone())
            mine, others = objects(one), objects(two)
            got, expected = graph(one), change(two)
            assert same(look(one), look(two))
            assert places([one, got], mine) == places([two, expected], others)
            assert expected is two or same(got, expected)
            found.append((one, two))
    assert all(same(look(one), look(two)) for one, two in found)  # no later call moves them


def a_cache_that_grows() -> Play:
    cache = SimpleNamespace(keys=[])

    def step(cache, x):
        seen = torch.cat([*cache.keys[-2:], x])
        cache.keys.append(x * 2)
        del cache.keys[:-2]
        return seen.sum(0)

    return Play(step, [cache], calls=[(cache, x) for x in torch.randn(10, 1, 3)])


def a_number_that_moves() -> Play:
    numbers = iter(range(100))

    def count(d):
        d["n"] = next(numbers)
        return d["x"] * 2

    return of(count, lambda n: ({"x": base(n)},), 6)


def test_a_cache_grows_and_a_number_that_moves_stays_in_eager():
    Case(a_cache_that_grows, form="graph", served=5).check()
    Case(a_number_that_moves, form="graph", says=r"args\[0\]\['n'\]").check()


def test_a_step_that_raises_leaves_its_arguments_as_they_were():
    model, optimizer = made()
    fails = True

    class Step(Train):
        def build(self, batch, rest):
            batch["hidden"] = batch.pop("x").mul_(2)
            batch["inner"]["list"].append(self.model(batch["hidden"]))
            rest.x, rest.more = batch["hidden"], 1
            if fails:
                raise KeyError("half-way")
            loss = batch["inner"]["list"][-1].square().mean()
            loss.backward()
            return loss

    graph = Step(model, optimizer)
    x = data()[0]
    batch, rest = given(x), Plain(x)
    with pytest.raises(KeyError):
        graph(batch, rest)
    assert same(batch, given(data()[0]))
    assert list(batch) == ["x", "inner"]
    assert set(vars(rest)) == {"x", "scale"}
    fails = False
    for x in data(5):
        batch = given(x)
        loss = graph(batch, Plain(x.clone()))
        assert loss == batch["inner"]["list"][-1].square().mean()
        assert not batch["inner"]["list"][-1].requires_grad


def test_the_loss_may_lie_in_the_batch():
    def run(graphed):
        model, optimizer = made()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

        def step(batch):
            batch["loss"] = model(batch["x"]).square().mean()
            batch["loss"].backward()

        def eager(batch):
            step(batch)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step(batch["loss"].detach())

        if graphed:
            graph = Function(step, model=model)
            graph.add_optimizer(optimizer, lr_sch=schedule)
        torch.manual_seed(3)
        batches = [{"x": x} for x in data(8)]
        for batch in batches:
            (graph if graphed else eager)(batch)
            yield batch["loss"].detach(), optimizer.param_groups[0]["lr"]

    assert same(list(run(True)), list(run(False)))


def test_padded_calls_that_change_their_arguments_run_as_they_are():
    graph = Function(lambda d: added(d) * 0 + d["y"])
    graph.config.set_shape_buckets(0, [4, 8])
    given = [{"x": torch.randn(rows)} for rows in (3, 5, 3, 3, 3, 5, 4)]
    with pytest.warns(tg.errors.PaddingWarning, match="among its arguments"):
        got = list(map(graph, given))
    for one, found in zip(given, got, strict=True):
        assert torch.equal(one["y"], one["x"] * 2)
        assert torch.equal(found, one["x"] * 2)


def test_micro_batches_are_objects_of_their_own():
    model, optimizer = made()

    class Step(Train):
        def build(self, batch):
            batch["hidden"] = self.model(batch.pop("x"))
            loss = batch["hidden"].square().mean()
            loss.backward()
            return {"loss": loss, "batch": batch}

    graph = Step(model, optimizer)
    graph.config.set_gradient_accumulation_steps(2)
    for x in data(5, rows=4):
        batch = {"x": x}
        got = graph(batch)
        assert list(batch) == ["x"]
        assert got["batch"]["hidden"].shape == (4, 2)


def test_a_check_and_a_report_leave_the_arguments_alone():
    graph = Function(nested)
    for x in batches(4):
        graph(given(x))
    one = given(x)
    graph.check(one)
    assert same(one, given(x))
    assert "args[0]" in str(graph.report())
