"""The calls of CUDA's libraries that the stub has no source for, written by their prototypes.

All of the driver's and of the runtime's, which others look up by name, and of the libraries what
torch imports. The prototypes are those of the headers that are installed: of them nothing is kept
here. What such a call does is told by its name and its parameters:

* what it creates, or gets a number or a handle for, is written: a new handle, or 1;
* one that takes a library's handle and computes is a node on the handle's stream;
* all return zero, which is success.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADERS = (
    "cuda.h",
    "cuda_runtime_api.h",
    "cudaProfiler.h",
    "cuda_profiler_api.h",
    "cublas_v2.h",
    "cublasLt.h",
    "cupti.h",
    "cusolverDn.h",
    "cusparse.h",
    "cudnn.h",
    "cufftXt.h",
)
CUDA = re.compile(r"(__cuda|cuda[A-Z]|cu[A-Z]|cupti|cublas|cudnn|cusparse|cusolver|cufft|curand)")
REAL = re.compile(r"nccl|nvrtc|nvshmem|cuFile|cusparseLt")
"""Of libraries that do their work on the host, or that nobody calls: they stay as they are."""
PROTOTYPE = re.compile(
    r"(?<=[;{}]) ?(?:extern )?(?:static )?"
    r"((?:const )?\w+ ?\*?) ?"  # what it returns
    r"(\w+) ?"
    r"\(([^(){};]*(?:\([^()]*\)[^(){};]*)*)\) ?;"  # parameters, a function among them
)
TYPES = {"int", "unsigned", "long", "char", "float", "double"}
"""A last word that is no parameter's name."""
HEAD = """
#include "stub.h"

#include <cstring>
#include <type_traits>

namespace {
template <class T> void give(T* place) {
  if (!place) return;
  if constexpr (std::is_pointer_v<T>) *place = (T)stub::new_handle();
  else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) *place = (T)1;
  else memset((void*)place, 0, sizeof(T));
}
}  // namespace

extern "C" {
"""


@dataclass(frozen=True)
class Parameter:
    """``type`` is as one writes it before a name; ``declared`` as a parameter of a definition."""

    type: str
    name: str
    declared: str
    array: bool
    function: bool

    @property
    def written(self) -> bool:
        """True for a place that a call may write to."""
        pointer = self.array or self.type.endswith("*")
        return pointer and not self.function and not re.match(r"const|void", self.type)


@dataclass(frozen=True)
class Prototype:
    """A function of a header."""

    result: str
    name: str
    parameters: tuple[Parameter, ...]


def imported(libraries: Path) -> set[str]:
    """The symbols of CUDA that the libraries of a folder import."""
    found: set[str] = set()
    for library in sorted(libraries.glob("*.so")):
        command = ["nm", "-D", "--undefined-only", str(library)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found |= {line.split()[-1].partition("@")[0] for line in said.splitlines()}
    return {name for name in found if CUDA.match(name) and not REAL.match(name)}


def preprocessed(compiler: Sequence[str]) -> str:
    """The headers as one text; ``compiler`` knows where they are."""
    command = [*compiler, "-E", "-P", "-x", "c++", "-"]
    source = "".join(f"#include <{header}>\n" for header in HEADERS)
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return done.stdout


def prototypes(text: str) -> dict[str, Prototype]:
    """All functions of a text, by name."""
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", text)
    text = re.sub(r"\s+", " ", re.sub(r"\[\[deprecated.*?\]\]", "", text))
    text = re.sub(r"\btypedef [^;{}]*;", ";", text)
    found: dict[str, Prototype] = {}
    for result, name, parameters in PROTOTYPE.findall(text):
        if result.strip() != "return":
            parts = [] if parameters.strip() in ("", "void") else _split(parameters)
            all_ = tuple(_parameter(number, part) for number, part in enumerate(parts))
            found.setdefault(name, Prototype(result.strip(), name, all_))
    return found


def _split(parameters: str) -> list[str]:
    """At commas that are in no brackets."""
    return re.split(r",(?![^(<]*[)>])", parameters)


def _parameter(number: int, text: str) -> Parameter:
    text = text.partition("=")[0].strip()
    if "(" in text:
        return Parameter(text, "", text, array=False, function=True)
    text, array = re.subn(r"\[.*\]$", "", text)
    named = re.match(r"(.*?[\s*])(\w+)$", text)
    type_, name = text, ""
    alone = named and named.group(1).strip() in ("const", "struct", "enum")
    if named and named.group(2) not in TYPES and not alone:
        type_, name = named.group(1).strip(), named.group(2)
    declared = f"{type_} {'*' if array else ''}a{number}"
    return Parameter(type_, name, declared, array=bool(array), function=False)


def definition(call: Prototype) -> str:
    """The call in C++."""
    body = [f'stub::say("{call.name}");']
    body += [f"give(a{n});" for n, p in enumerate(call.parameters) if _gives(call, n, p)]
    if re.search(r"SetStream(_v2)?$", call.name):
        body.append("stub::set_stream((void*)a0, (void*)a1);")
    elif _computes(call):
        body.append("stub::compute((void*)a0);")
    if "char" in call.result:
        body.append('return "stub";')
    elif call.result != "void":
        body.append(f"return ({call.result})0;")
    declared = ", ".join(parameter.declared for parameter in call.parameters)
    return f"{call.result} {call.name}({declared}) {{ {' '.join(body)} }}\n"


CREATES = re.compile(
    r"Create|Subscribe|createDescr|GetProc|Alloc|Retain|LibraryGet|LibraryLoad|GetModule|ModuleGet"
    r"|Reserve"
)
NUMBER = re.compile(r"(int|unsigned|size_t|long|int64_t|cu\w+_t|CU\w+)\b[^*]*\*$")


def _gives(call: Prototype, number: int, parameter: Parameter) -> bool:
    """True where the place has to hold something afterwards."""
    if not parameter.written:
        return False
    if re.match(r"size_t ?\*", parameter.type):
        return True
    if re.match(r"int ?\*", parameter.type) and re.search("lwork|returned", parameter.name, re.I):
        return True
    if "Algorithm" in call.name and "Perf" in parameter.type:
        return True
    if CREATES.search(call.name) and (number == 0 or call.name == "cudnnBackendCreateDescriptor"):
        return True
    got = "Get" in call.name and not call.name.startswith("cudnn")
    return got and NUMBER.match(parameter.type) is not None


def _computes(call: Prototype) -> bool:
    """True for a call of a library that enqueues work on its handle's stream."""
    if re.search(r"Create|Destroy|Set|Get|Size|analysis|^cuda|^cu[A-Z]", call.name):
        return False
    first = call.parameters[0] if call.parameters else None
    if first is None or first.function:
        return False
    return re.match(r"\w*[hH]andle_t", first.type) is not None and "*" not in first.type


def source(compiler: Sequence[str], libraries: Path, there: Collection[str]) -> str:
    """C++ of all calls that are wanted and not ``there``."""
    known = prototypes(preprocessed(compiler))
    interfaces = {name for name in known if re.match(r"cu(da)?[A-Z]", name)}
    wanted = sorted((imported(libraries) | interfaces) - set(there))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"torch imports {', '.join(unknown)}, which no header of HEADERS has")
    include = "".join(f"#include <{header}>\n" for header in HEADERS)
    definitions = "".join(definition(known[name]) for name in wanted)
    return f'{include}{HEAD}{definitions}}}  // extern "C"\n'
