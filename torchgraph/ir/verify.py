"""The verifier: one table of rules for each stage.

Checked after capture and after each pass. The fast rules walk the program once each. Strict
checking also computes every fake value again.
"""

from __future__ import annotations

import enum
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from .._torch import FakeTensor, HigherOrderOperator, OpOverload, schema_of
from ..errors import VerifyError
from . import aliasing, effects, text, values
from .batch_norms import VENDOR
from .program import RECORDED, OutputKind, Program, Provenance, TensorMeta, provenance
from .writes import Memory, Writing

PREDICATES = "predicates"
"""The namespace of predicates among ordered calls: who removes some names it in `Pass.removes`."""
_NUMBER_MODULES = frozenset({operator.__name__, "_operator", math.__name__})
_NUMBER_BUILTINS = frozenset({abs, bool, divmod, float, int, max, min, pow, round, sum})


class Stage(enum.Enum):
    """The stage of a program on its way from capture to code."""

    CAPTURED = "captured"
    OPTIMIZED = "optimized"
    LOWERED = "lowered"


class Broken(NamedTuple):
    """A place where a rule does not hold. ``node`` is None when the whole program is meant."""

    node: fx.Node | None
    why: str


@dataclass(frozen=True)
class Rule:
    """A rule of the verifier: a name for messages and a function that yields each violation."""

    name: str
    check: Callable[[Program], Iterator[Broken]]


@dataclass(frozen=True)
class Promises:
    """Properties that no pass may change: the order of effects, and which outputs share memory."""

    ordered: tuple[tuple[str, str, str], ...]
    """(namespace, op, results) of each draw, collective, predicate and opaque call, in order."""
    memory: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, program: Program) -> Promises:
        """Read from a program."""
        return cls(tuple(_ordered_calls(program)), aliasing.memory_classes(program))


def verify(
    program: Program, stage: Stage = Stage.CAPTURED, *, made_by: str = "", strict: bool = False
) -> None:
    """Raise `VerifyError` for the first broken rule of ``stage``.

    ``made_by`` names the pass, or the stage, that is to blame. ``strict`` also computes every fake
    value again and compares dtype, device, shape and strides.
    """
    check(program, (*RULES[stage], *STRICT) if strict else RULES[stage], made_by or stage.value)


def check(program: Program, rules: Iterable[Rule], made_by: str) -> None:
    """Raise `VerifyError` for the first rule that ``program`` breaks."""
    for rule in rules:
        for broken in rule.check(program):
            raise _error(program, rule.name, broken, made_by)


def verify_promises(
    before: Promises,
    program: Program,
    *,
    made_by: str = "",
    removes: frozenset[str] = frozenset(),
    retypes: bool = False,
) -> Promises:
    """The promises of ``program``, which the next pass must keep.

    Raises `VerifyError` for other ordered effects than before, or outputs that share more memory.
    ``removes`` holds the namespaces whose ordered calls the pass says it removes; ``retypes``: it
    says that they may give another dtype.
    """
    now = Promises.of(program)
    parts = 2 if retypes else 3
    old_calls = [call[:parts] for call in before.ordered if call[0] not in removes]
    new_calls = [call[:parts] for call in now.ordered if call[0] not in removes]
    if old_calls != new_calls:
        why = _first_difference(old_calls, new_calls)
        raise _error(program, "effects keep their order", Broken(None, why), made_by)
    shared = {member: group for group in before.memory for member in group}
    for group in now.memory:
        if not group <= shared.get(min(group - {"a constant"}), frozenset()):
            why = f"{', '.join(sorted(group))} share memory now and did not before"
            raise _error(program, "outputs share no new memory", Broken(None, why), made_by)
    return now


def _error(program: Program, rule: str, broken: Broken, made_by: str) -> VerifyError:
    where = provenance(broken.node).line if broken.node is not None else None
    shown = text.window(program, broken.node)
    return VerifyError(f"After {made_by}: {rule}: {broken.why}.\n{shown}", where=where)


def _first_difference(old: list[tuple[str, ...]], new: list[tuple[str, ...]]) -> str:
    for index, (left, right) in enumerate(zip(old, new, strict=False)):
        if left != right:
            return f"ordered call {index} was {': '.join(left[1:])} and is {': '.join(right[1:])}"
    return f"there were {len(old)} ordered calls and there are {len(new)}"


def _ordered_calls(program: Program) -> Iterator[tuple[str, str, str]]:
    for node in program.nodes:
        if effects.of(node).ordered:
            shape = [text.value_type(leaf) for leaf in values.leaves(node.meta.get("val"))]
            expects = effects.of(node).expects
            space = PREDICATES if expects else getattr(node.target, "namespace", "")
            yield space, str(node.target), ", ".join(shape)


# --- the rules -----------------------------------------------------------------------------------


def _one_output(program: Program) -> Iterator[Broken]:
    outputs = [node for node in program.nodes if node.op == "output"]
    if len(outputs) != 1 or program.output is not outputs[0]:
        yield Broken(None, f"{len(outputs)} output nodes, last node is {program.output.name}")
    elif not isinstance(outputs[0].args[0], (tuple, list)):
        yield Broken(outputs[0], "the output is not a flat tuple")


def _node_kinds(program: Program) -> Iterator[Broken]:
    allowed = {"placeholder", "get_attr", "call_function", "output"}
    started = False
    for node in program.nodes:
        if node.op not in allowed:
            yield Broken(node, f"{node.op} is not one of {', '.join(sorted(allowed))}")
        if node.op == "placeholder" and started:
            yield Broken(node, "a placeholder after the first computed node")
        started = started or node.op != "placeholder"


def _topological(program: Program) -> Iterator[Broken]:
    seen: set[fx.Node] = set()
    for node in program.nodes:
        for argument in node.all_input_nodes:
            if argument not in seen:
                why = f"{node.name} uses {argument.name}, which comes later or is erased"
                yield Broken(node, why)
        seen.add(node)


def _targets(program: Program) -> Iterator[Broken]:
    for node in program.nodes:
        if node.op == "call_function" and not _is_target(node.target):
            yield Broken(node, f"{node.target} is no op overload and no function on numbers")


def _is_target(target: Any) -> bool:
    if isinstance(target, (OpOverload, HigherOrderOperator)):
        return True
    if isinstance(getattr(target, "effects", None), effects.Effects):
        return True  # `Each`, a region: it says itself what a call does
    name = getattr(target, "__name__", "")
    module = getattr(target, "__module__", "")
    symbolic = module.split(".")[0] == "torch" and name.startswith(("sym_", "_sym_"))
    return module in _NUMBER_MODULES or symbolic or _is_number_builtin(target)


def _is_number_builtin(target: Any) -> bool:
    try:
        return target in _NUMBER_BUILTINS
    except TypeError:
        return False


def _typed(program: Program) -> Iterator[Broken]:
    mode = None
    for node in program.nodes:
        if node.op == "output":
            continue
        if "val" not in node.meta:
            if not _may_be_untyped(program, node):
                yield Broken(node, f'{node.name} has no meta["val"]')
            continue
        for leaf in values.leaves(node.meta["val"]):
            if isinstance(leaf, FakeTensor):
                mode = mode or leaf.fake_mode
                if leaf.fake_mode is not mode:
                    yield Broken(node, f"the value of {node.name} is from another fake mode")
            elif isinstance(leaf, torch.Tensor):
                yield Broken(node, f"the value of {node.name} is a real tensor")


def _may_be_untyped(program: Program, node: fx.Node) -> bool:
    """Subgraphs, ops that return nothing, a None among results, what the profiler leaves behind."""
    if node.op == "get_attr":
        return isinstance(operator.attrgetter(str(node.target))(program.gm), torch.nn.Module)
    if node.target is operator.getitem:
        source: Any = node.args[0]
        return source.meta["val"][node.args[1]] is None
    if not isinstance(node.target, OpOverload):
        return False
    return node.target.namespace == "profiler" or not schema_of(node.target).returns


def _functional(program: Program) -> Iterator[Broken]:
    for node in program.nodes:
        if effects.of(node).mutates:
            yield Broken(node, f"{node.target} writes one of its arguments")


def _provenance(program: Program) -> Iterator[Broken]:
    for node in program.nodes:
        origin = node.meta.get("provenance")
        if node.op == "call_function" and not isinstance(origin, Provenance):
            yield Broken(node, f"{node.name} has no provenance")


def _inputs(program: Program) -> Iterator[Broken]:
    placeholders, specs = program.placeholders, program.signature.inputs
    if len(placeholders) != len(specs):
        yield Broken(None, f"{len(placeholders)} placeholders for {len(specs)} inputs")
    for node, spec in zip(placeholders, specs, strict=False):
        if node.name != spec.name:
            yield Broken(node, f"placeholder {node.name}, the signature has {spec.name}")
        why = _meta_difference(spec.meta, node.meta.get("val"))
        if why:
            yield Broken(node, f"{spec.fqn}: {why}")


def _meta_difference(meta: TensorMeta | None, value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "" if meta is None else "the signature has a tensor, the program none"
    if meta is None:
        return "the signature has a number, the program a tensor"
    pairs = {
        "shape": (meta.shape, tuple(value.shape)),
        "dtype": (meta.dtype, value.dtype),
        "stride": (meta.stride, value.stride()),
        "device": (meta.device, value.device),
    }
    for name, (expected, got) in pairs.items():
        if str(expected) != str(got):
            return f"{name} {got}, the signature has {expected}"
    return ""


def _outputs(program: Program) -> Iterator[Broken]:
    results, specs = program.results, program.signature.outputs
    if len(results) != len(specs):
        yield Broken(program.output, f"{len(results)} results for {len(specs)} outputs")
    inputs = {spec.fqn: spec for spec in program.signature.inputs}
    for result, spec in zip(results, specs, strict=False):
        if spec.kind is not OutputKind.UPDATE:
            continue
        if spec.target not in inputs:
            yield Broken(program.output, f"no input is called {spec.target}, which is updated")
        elif isinstance(result, fx.Node):
            why = _update_difference(inputs[spec.target].meta, result.meta.get("val"))
            if why:
                yield Broken(result, f"the update of {spec.target}: {why}")


def _update_difference(meta: TensorMeta | None, value: Any) -> str:
    """Strides may differ: the closing copy writes them in the input's own layout."""
    if meta is None or not isinstance(value, torch.Tensor):
        matches = (meta is None) == (not isinstance(value, torch.Tensor))
        return "" if matches else "one is a tensor, the other a number"
    if str(meta.shape) != str(tuple(value.shape)):
        return f"shape {tuple(value.shape)}, the input has {meta.shape}"
    if (meta.dtype, meta.device) != (value.dtype, value.device):
        return f"{value.dtype} on {value.device}, the input is {meta.dtype} on {meta.device}"
    return ""


def _unique_inputs(program: Program) -> Iterator[Broken]:
    for fqn, times in Counter(spec.fqn for spec in program.signature.inputs).items():
        if times > 1:
            yield Broken(None, f"{times} inputs are called {fqn}")


_NORMS = torch.ops.aten.native_layer_norm.default, torch.ops.aten.native_group_norm.default
_FIRST_KNOWN = frozenset({*_NORMS, VENDOR.eager})
"""Statistics have the weights' dtype on the CPU; how much cuDNN keeps, it says itself."""


def _recomputed(program: Program) -> Iterator[Broken]:
    mode = values.mode_of(program)
    with values.neutral():
        for node in program.nodes:
            if node.op != "call_function" or not values.is_predictable(node.target):
                continue
            if effects.of(node).mutates or isinstance(node.target, Writing):
                continue  # of a lowered program: another rule is about what it writes
            args, kwargs = values.with_values(node.args), values.with_values(node.kwargs)
            facts = [node.target, *values.flat((node.meta.get("val"), args, kwargs))]
            if _same(node.meta.get(_COMPUTED), facts):
                continue
            try:
                computed = values.evaluate(mode, node.target, args, kwargs)
            except (RuntimeError, NotImplementedError):
                if RECORDED in node.meta and effects.of_users(node.target):
                    continue  # a custom op without a fake kernel: what was recorded is known alone
                raise
            compare = values.difference_in_kind if RECORDED in node.meta else values.difference
            recorded: Any = node.meta.get("val")
            if node.target in _FIRST_KNOWN and RECORDED in node.meta:
                recorded, computed = recorded[0], computed[0]
            why = compare(recorded, computed)
            if why:
                yield Broken(node, f"the value of {node.name} is recorded with {why} recomputed")
            else:
                node.meta[_COMPUTED] = facts


_COMPUTED = "computed"
"""``node.meta`` of what was right the last time: most passes leave most nodes as they are."""


def _same(known: list[Any] | None, facts: list[Any]) -> bool:
    if known is None or len(known) != len(facts):
        return False
    plain = (int, float, str, tuple)
    return all(
        a is b or (type(a) is type(b) and isinstance(a, plain) and a == b)
        for a, b in zip(known, facts, strict=True)
    )


def _constants(program: Program) -> Iterator[Broken]:
    for node in program.nodes:
        if node.op == "get_attr" and "val" in node.meta:
            held = operator.attrgetter(str(node.target))(program.gm)
            why = values.difference(node.meta["val"], held)
            if isinstance(held, torch.Tensor) and why:
                yield Broken(node, f"the constant is recorded with {why} held")


def _memory(program: Program) -> Iterator[Broken]:
    return (Broken(fault.node, fault.why) for fault in Memory(program).faults())


def _lowered_targets(program: Program) -> Iterator[Broken]:
    """Besides ops: functions of torchgraph, such as the one that puts numbers in a vector."""
    for broken in _targets(program):
        module = "" if broken.node is None else getattr(broken.node.target, "__module__", "")
        if not str(module).startswith("torchgraph."):
            yield broken


_STRUCTURE = (
    Rule("one output, last", _one_output),
    Rule("inputs first, then calls", _node_kinds),
    Rule("arguments before their users", _topological),
    Rule("every node has a fake value of one mode", _typed),
    Rule("every call has provenance", _provenance),
    Rule("placeholders match the signature", _inputs),
    Rule("one name per input", _unique_inputs),
)
_FUNCTIONAL = (
    *_STRUCTURE,
    Rule("outputs match the signature", _outputs),
    Rule("targets are ops", _targets),
    Rule("functional until lowered", _functional),
)

RULES: dict[Stage, tuple[Rule, ...]] = {
    Stage.CAPTURED: _FUNCTIONAL,
    Stage.OPTIMIZED: _FUNCTIONAL,
    Stage.LOWERED: (
        *_STRUCTURE,
        Rule("targets are ops", _lowered_targets),
        Rule("reads find their values, writes are allowed", _memory),
    ),
}
STRICT = (
    Rule("fake values are what the ops return", _recomputed),
    Rule("constants are what they hold", _constants),
)
