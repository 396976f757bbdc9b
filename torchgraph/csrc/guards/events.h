// torchgraph._guards.listen: what Python tells an audit hook of files, processes and connections.
#pragma once

#include <Python.h>

namespace torchgraph {

extern PyMethodDef events_methods[];

}  // namespace torchgraph
