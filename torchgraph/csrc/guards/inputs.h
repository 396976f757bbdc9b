// torchgraph._guards.Inputs: are the tensors of a call like those of an earlier one?
#pragma once

#include <Python.h>

namespace torchgraph {

extern PyType_Spec inputs_spec;

}  // namespace torchgraph
