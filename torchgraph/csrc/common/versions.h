// Autograd's version counters, which tell that a tensor was written since it was saved.
//
// The stable ABI cannot raise them, and a Python kernel that does takes longer than a small update.
// What libtorch exports for it is called with a handle of the ABI, which is a pointer to a tensor: so
// it is in the torch versions below. In others ``kernels_raise_versions`` is false, and
// torchgraph/library/definition.py puts that Python kernel in front.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

namespace at {
class Tensor;
}
namespace torch::autograd::impl {
__attribute__((weak)) void bump_version(const at::Tensor& self);
}

namespace torchgraph {

inline bool kernels_raise_versions() {
  static const bool possible = [] {
    const uint64_t minor = aoti_torch_abi_version() >> 48;  // 0x020d for 2.13
    return minor >= 0x020b && minor <= 0x020f && &torch::autograd::impl::bump_version != nullptr;
  }();
  return possible;
}

// To be called by every kernel that writes the tensor, before it does.
inline void raise_version(AtenTensorHandle handle) {
  if (kernels_raise_versions()) {
    torch::autograd::impl::bump_version(*reinterpret_cast<const at::Tensor*>(handle));
  }
}

}  // namespace torchgraph
