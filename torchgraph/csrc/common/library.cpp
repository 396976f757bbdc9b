// The version of the compiled kernels. Each op registers itself beside its kernels; the schemas are
// defined in torchgraph/passes/fusions, so that the ops exist without this library too.
#include <torch/csrc/stable/library.h>

#include "common/versions.h"

namespace {

// Raised with every change of what a kernel computes or takes: programs that were compiled and kept
// on disk depend on it.
constexpr int64_t kVersion = 3;

int64_t compiled_version() { return kVersion; }

bool kernels_raise_versions() { return torchgraph::kernels_raise_versions(); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(torchgraph, library) {
  library.def("compiled_version() -> int");
  library.def("kernels_raise_versions() -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CompositeExplicitAutograd, library) {
  library.impl("compiled_version", TORCH_BOX(&compiled_version));
  library.impl("kernels_raise_versions", TORCH_BOX(&kernels_raise_versions));
}
