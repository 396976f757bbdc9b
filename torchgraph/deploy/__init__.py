"""``tg.export``: the step as torch's ExportedProgram, as an AOTInductor package, as ONNX.

Touches: programs, to copy them; the states and arguments, to read them; the file at the path.
Never: a state or the random generator, to move them; an op of ours in what is written.
"""

from __future__ import annotations

from .export import export as export

__all__ = ["export"]
