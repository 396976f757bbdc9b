// Adding to what is compared. Each takes the arguments of the method of the same name.
#pragma once

#include "checks.h"

namespace torchgraph {

// False: an exception is set.
bool add_members(Data& data, PyObject* args);
bool add_slots(Data& data, PyObject* args);
bool add_settings(Data& data, PyObject* args);
bool add_instance(Data& data, PyObject* args);
bool add_elements(Data& data, PyObject* args);
bool add_content(Data& data, PyObject* args);
bool add_item(Data& data, PyObject* args);
bool add_kind(Data& data, PyObject* args);
bool add_absent(Data& data, PyObject* args);
bool add_attribute(Data& data, PyObject* args);
bool add_weak_attribute(Data& data, PyObject* args);
bool add_hooks(Data& data, PyObject* args);
bool add_call(Data& data, PyObject* args);
bool add_call_when(Data& data, PyObject* args);
bool add_layout(Data& data, PyObject* args);
bool add_tensors(Data& data, PyObject* args);
bool add_storages(Data& data, PyObject* args);
bool add_leaves(Data& data, PyObject* args);
bool add_gradients(Data& data, PyObject* args);

}  // namespace torchgraph
