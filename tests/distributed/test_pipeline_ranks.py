"""What each rank of a pipeline has: memory of its stages, results, and errors, which all get."""

import pytest
import torch
from torch import nn

from tests.distributed.pipelines import Step, batch, ran
from tests.distributed.spawn import run
from torchgraph import errors
from torchgraph.distributed.errors import NotPipelined, ScheduleUnfit, StageNotPlaced

TWO = [(0, 0), (0, 0), (1, 1), (1, 1)]
FOUR = [(0, 0), (1, 1), (2, 0), (3, 1)]
THREE = [(0, 0), (0, 0), (1, 1)]


def _train(graph, steps, first=0):
    return [graph(*batch("mlp", first + number)) for number in range(steps)]


def states_elsewhere(rank):
    """What reads as NaN between calls, and takes no memory; all of it is back when it is asked."""
    graph = Step("mlp", "adamw", TWO)
    _train(graph, 5)
    found = {}
    for name, parameter in graph.model.named_parameters():
        slots = graph._runner.live.optimizers[0].state[parameter]
        moments = [slots["exp_avg"], slots["exp_avg_sq"]]
        held = [one.untyped_storage().nbytes() for one in (parameter.data, *moments)]
        gone = all(bool(one.isnan().all()) for one in (parameter, *moments))
        found[name] = gone, sum(held)
        if gone:
            with pytest.raises(RuntimeError), torch.no_grad():
                parameter.copy_(torch.ones_like(parameter))
    graph.sync()
    whole = all(not one.isnan().any() for one in graph.model.parameters())
    return found, whole


def goes_on_after_all_was_looked_at(rank):
    """State taken, other shapes, an eager call between: the numbers stay those of one process."""
    plain, graph = Step("mlp", "adamw"), Step("mlp", "adamw", FOUR)
    for number in range(6):
        size = 8 if number % 2 else 16
        for first in range(4):
            given = batch("mlp", 10 * number + first, size)
            expected, found = plain(*given), graph(*given)
            assert found.is_meta or torch.equal(expected, found)
        graph.state_dict()
    graph.sync()
    pairs = zip(plain.model.parameters(), graph.model.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs), len(graph._runner.cache)


def takes_a_checkpoint(rank):
    """The state of one process goes into a pipeline, and that of a pipeline into one process."""
    plain = Step("mlp", "adamw")
    _train(plain, 4)
    graph = Step("mlp", "adamw", TWO)
    _train(graph, 6, first=50)
    graph.load_state_dict(plain.state_dict())
    losses = list(zip(_train(plain, 4, 4), _train(graph, 4, 4), strict=True))
    other = Step("mlp", "adamw")
    other.load_state_dict(graph.state_dict())
    more = list(zip(_train(plain, 4, 8), _train(other, 4, 8), strict=True))
    return all(two.is_meta or torch.equal(one, two) for one, two in [*losses, *more])


def results_are_where_they_are_computed(rank):
    rates = {}

    class Both(Step):
        def build(self, x, y):
            hidden = self.model.blocks[0](x)
            out = self.model.blocks[3](self.model.blocks[2](self.model.blocks[1](hidden)))
            loss = nn.functional.cross_entropy(out, y)
            loss.backward()
            return {"loss": loss, "hidden": hidden, "lr": rates[id(self)]["lr"]}

    found = {}
    for ranks in ("last", "all"):
        plain, graph = Both("mlp", "sgd"), Both("mlp", "sgd", TWO, set_pipeline_outputs=ranks)
        for one in (plain, graph):
            rates[id(one)] = one._runner.live.optimizers[0].param_groups[0]
        for number in range(4):
            expected, got = plain(*batch("mlp", number)), graph(*batch("mlp", number))
        found[ranks] = {
            key: got[key].is_meta or torch.equal(got[key], expected[key])
            for key in ("loss", "hidden")
        }
        found[ranks]["meta"] = sorted(k for k in ("loss", "hidden") if got[k].is_meta)
        found[ranks]["shapes"] = tuple(got["loss"].shape), tuple(got["hidden"].shape)
        if got["loss"].is_meta:
            with pytest.raises(RuntimeError):
                got["loss"].mean().item()
    return found


def plateau(rank):
    """A scheduler that goes by the loss wants it on all ranks."""
    losses = []
    for outputs in ("last", "all"):
        graph = Step("mlp", "sgd", TWO, set_pipeline_outputs=outputs)
        optimizer = graph._runner.live.optimizers.pop()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
        graph.add_optimizer(optimizer, lr_sch=scheduler)
        try:
            _train(graph, 6)
            losses.append(optimizer.param_groups[0]["lr"])
        except errors.GraphError as error:
            losses.append(f"{type(error).__name__}: {error}")
    return losses


class Loud(Step):
    """Its gradients overflow until the scale has come down."""

    def __init__(self, placed=(), **options: object):
        super().__init__("mlp", "adamw", placed, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
        self.set_grad_scaler(scaler)

    def build(self, x, y):
        loss = 4096 * nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def scaled(rank):
    """A step is skipped on all ranks, or on none."""
    found = []
    for options in ({}, {"set_clip_grad_norm": 0.1}):
        plain, graph = Loud(**options), Loud(FOUR, **options)
        for number in range(24):
            expected, got = plain(*batch("mlp", number)), graph(*batch("mlp", number))
            assert got.is_meta or torch.equal(expected, got)
            assert plain._runner.live.scaler.get_scale() == graph._runner.live.scaler.get_scale()
        first = plain.state_dict(), graph.state_dict()
        pairs = zip(*(one["model"].values() for one in first), strict=True)
        same = all(torch.equal(*pair) for pair in pairs)
        steps = {slots["step"].item() for slots in graph._runner.live.optimizers[0].state.values()}
        runs = sum(replay.runs for replay in graph._runner.cache)
        found.append((same, steps, graph._runner.live.scaler.get_scale(), runs))
    return found


def refusals(rank):
    """All ranks get the same error, and go on."""
    cases = {
        "zbv": (FOUR, {"set_pipeline_schedule": "zbv"}),
        "rank 1 has none": ([(0, 0), (1, 0), (2, 0), (3, 0)], {}),
        "rank 2": ([(0, 0), (1, 1), (2, 0), (3, 2)], {}),
        "copies": ([(0, [0, 1]), (1, [0, 1]), (2, [0, 1]), (3, [0, 1])], {}),
        "uneven": ([(0, [0, 1]), (1, 1), (2, 0), (3, 1)], {}),
        "split": (FOUR, {"set_pipeline_schedule": "zero_bubble", "micro_batches": 5}),
    }
    found = {}
    for key, (placed, options) in cases.items():
        graph = Step("mlp", "sgd", placed, **options)
        size = 20 if "micro_batches" in options else 16
        try:
            for number in range(3):
                graph(*batch("mlp", number, size))
            found[key] = "ran"
        except errors.GraphError as error:
            found[key] = f"{type(error).__name__}: {error}"
    return found


def unlike(rank):
    """Ranks that start from other weights, batches or random numbers."""
    found = {}
    for what in ("weights", "batch", "generator"):
        name = "dropout" if what == "generator" else "mlp"
        graph = Step(name, "sgd", THREE if what == "generator" else TWO)
        torch.manual_seed(rank * (what == "generator"))
        with torch.no_grad():
            graph.model.blocks[2].bias.add_(rank * (what == "weights"))
        try:
            for number in range(3):
                graph(*batch(name, number + 10 * rank * (what == "batch")))
            found[what] = "ran"
        except errors.GraphError as error:
            found[what] = f"{type(error).__name__}: {error}"
    return found


def reported(rank):
    graph = Step("mlp", "sgd", FOUR, set_clip_grad_norm=1.0)
    _train(graph, 5)
    text = str(graph.report())
    found = graph.report().pipeline
    graph.close()
    return text, found, all(not one.isnan().any() for one in graph.model.parameters())


def placements(rank):
    """A mesh, and whatever has ranks, say where a stage is."""

    class Placement:
        def __init__(self, ranks):
            self.ranks = ranks

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    found = []
    for first, second in ((Placement([0]), Placement([1])), (torch.tensor([0]), [[1]])):
        graph = Step("mlp", "sgd", [(0, first), (0, first), (1, second), (1, second)])
        found.append(ran(graph, "mlp", 5)["runs"])
    assert mesh.size() == 2
    return found


ALL = (
    states_elsewhere,
    goes_on_after_all_was_looked_at,
    takes_a_checkpoint,
    results_are_where_they_are_computed,
    plateau,
    scaled,
    refusals,
    unlike,
    reported,
    placements,
)


def every(rank):
    found = {}
    for one in ALL:
        found[one.__name__] = one(rank)
        torch.distributed.barrier()
    return found


@pytest.fixture(scope="module")
def ranks():
    return run(every, 2)


def test_states_of_other_ranks_read_as_nan_and_take_no_memory(ranks):
    for rank, found in enumerate(ranks):
        states, whole = found["states_elsewhere"]
        assert whole
        for name, (gone, held) in states.items():
            elsewhere = (int(name.split(".")[1]) > 1) is not (rank == 1)
            assert gone is elsewhere, name
            assert held == 12 if gone else held > 12, name


def test_a_pipeline_goes_on_after_all_was_looked_at(ranks):
    assert [found["goes_on_after_all_was_looked_at"] for found in ranks] == [(True, 2)] * 2


def test_checkpoints_go_in_and_out(ranks):
    assert all(found["takes_a_checkpoint"] for found in ranks)


def test_results_are_where_they_are_computed(ranks):
    first, last = (found["results_are_where_they_are_computed"] for found in ranks)
    assert first["last"]["meta"] == ["loss"]
    assert last["last"]["meta"] == ["hidden"]
    for found in (first, last):
        assert found["all"]["meta"] == []
        for ranks_ in ("last", "all"):
            assert found[ranks_]["loss"]
            assert found[ranks_]["hidden"]
            assert found[ranks_]["shapes"] == ((4,), (16, 16))


def test_a_scheduler_that_needs_the_loss_has_it_everywhere_or_says_so(ranks):
    for refused, rate in (found["plateau"] for found in ranks):
        assert refused.startswith("NotPipelined")
        assert 'set_pipeline_outputs("all")' in refused
        assert rate < 0.05


def test_a_grad_scaler_skips_a_step_on_all_ranks(ranks):
    assert ranks[0]["scaled"] == ranks[1]["scaled"]
    for same, steps, scale, runs in ranks[0]["scaled"]:
        assert same
        assert runs > 4
        assert 0 < min(steps) == max(steps) < 24 - 12
        assert scale < 2.0**127


def test_all_ranks_are_refused_alike(ranks):
    first, second = (found["refusals"] for found in ranks)
    assert first == second
    assert first["zbv"].startswith(ScheduleUnfit.__name__)
    assert first["rank 1 has none"].startswith(StageNotPlaced.__name__)
    assert first["rank 2"].startswith(StageNotPlaced.__name__)
    assert first["uneven"].startswith(StageNotPlaced.__name__)
    assert first["copies"].startswith(NotPipelined.__name__)
    assert "enable_data_parallel" in first["copies"]
    assert first["split"].startswith(ScheduleUnfit.__name__)


def test_ranks_that_are_unlike_are_all_told(ranks):
    first, second = (found["unlike"] for found in ranks)
    assert first == second
    for what, named in (
        ("weights", "model.blocks.2.bias"),
        ("batch", "args[0]"),
        ("generator", "random generator"),
    ):
        assert first[what].startswith("RanksDiffer")
        assert named in first[what]


def test_the_report_shows_stages_and_what_travels(ranks):
    for text, found, whole in (one["reported"] for one in ranks):
        assert whole
        assert "Pipeline (1f1b, 4 micro-batches" in text
        assert [one.ranks for one in found.stages] == [(0,), (1,), (0,), (1,)]
        assert [one.sends for one in found.stages] == [512, 512, 256, 0]
        assert found.stages[0].sends_back == 0
        assert all(one.forward and one.backward and one.kept for one in found.stages)
        assert found.exchanged > 0


def test_placements_of_any_kind_have_ranks(ranks):
    assert [found["placements"] for found in ranks] == [[2, 2]] * 2
