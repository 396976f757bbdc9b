"""Reasons why a step runs in eager: a closed list, each with a title, a sentence and a way out."""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """A reason why a step has no program. `docs/migrating.md` lists them."""

    @property
    def title(self) -> str:
        """A short name."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """A sentence that explains it."""
        return self.value[1]

    @property
    def way_out(self) -> str:
        """The advice."""
        return self.value[2]

    ARGUMENTS = (
        "arguments",
        "The arguments are others at each call: numbers, objects or shapes without end.",
        "pass what changes as a tensor, a float as torch.tensor(x, dtype=torch.float64); make "
        "objects once; pad inputs to few shapes",
    )
    DATA = (
        "a value of data",
        "Python goes by a value of a tensor that is another one at each call.",
        "compute with the tensor, or return it",
    )
    CONSTANT = (
        "a constant that moves",
        "A number or tensor that Python makes in the step is another one at each call.",
        "pass it in as a tensor, a float as torch.tensor(x, dtype=torch.float64)",
    )
    ASSIGNED = (
        "assigned between calls",
        "What the step reads by name is another object or value at each call.",
        "pass it as an argument, a number as a tensor (a float as torch.tensor(x, "
        "dtype=torch.float64)), what it decides as a flag, or write it into a tensor that stays",
    )
    MOVED = (
        "read and moved",
        "The step reads what it moves itself, and no program carries it on.",
        "keep it in a tensor that is updated in place; what Python decides by may be an argument",
    )
    STRUCTURE = (
        "other ops",
        "The step is not the same from call to call: other ops, states or results.",
        "let what chooses be an argument of the step, or make a step of each",
    )
    TRAINS = (
        "what trains",
        "Other parameters train as the step begins, again and again.",
        "let few sets of parameters train in turn, or multiply gradients by 0",
    )
    LAYOUT = (
        "another layout",
        "Each call leaves a state or argument in another shape, layout or memory than before.",
        "write into the tensor that is there, or move it once, before the first call",
    )
    RAISES = (
        "an op that raises",
        "An op raises, for its values, in most calls.",
        "ask first whether the values fit, and leave the call out where they do not",
    )
    PROCESS = (
        "asked of the process",
        "The step asks for what is another at each call (a clock, a generator of its own, an open "
        "file), or leaves a setting of the process otherwise than it was.",
        "ask, draw and read before the call, and pass what comes of it; set back what is set",
    )
    NO_PROGRAM = (
        "no program",
        "An op, an optimizer or a place of Python's is used that no program can hold.",
        "call that part outside of the step",
    )
    IDLE = (
        "programs that hardly serve",
        "Programs were made, and later calls begin otherwise.",
        "let each call leave attributes, gradients and kept tensors as it found them",
    )
    AROUND = (
        "around the call",
        "What surrounds the call, or runs beside it, no program can follow.",
        "call the step without it",
    )
    BEGINNING = (
        "at its beginning",
        "The call begins otherwise than a step: with gradients, or before parameters are there.",
        "call optimizer.zero_grad() before it; the next calls have programs",
    )
    FAULT = (
        "a fault",
        "A program could not be made, or does not compute what eager does.",
        "report it: this is torchgraph's fault, or that of a pass that was inserted",
    )


class Because(str):
    """The text of a reason for one step, with the user's names and line."""

    __slots__ = ("reason",)
    reason: Reason

    def __new__(cls, reason: Reason, words: str) -> Because:  # noqa: PYI034  # Python 3.10
        """The words are what is shown."""
        made = super().__new__(cls, words)
        made.reason = reason
        return made


def reason_of(why: str) -> Reason:
    """The `Reason` of a text; the general one for a plain string, as of a refusal."""
    return why.reason if isinstance(why, Because) else Reason.NO_PROGRAM
