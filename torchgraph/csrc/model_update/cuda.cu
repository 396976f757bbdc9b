// The update ops on CUDA: every tensor of a group in one launch, each element read and written once.
#include "model_update/tables.h"

namespace torchgraph {
namespace {

template <unsigned kUsed, class Rule, class M>
__device__ __forceinline__ void walk(const Rule& rule, const Gradient<M>& gradient,
                                     const UpdateRecord& r, int64_t begin, int64_t end) {
  const auto next = [&](M p, M g, M& a, M& b, M& c) {
    return rule.template next<kUsed, false>(p, gradient.template prepare<kPenalized>(g, p), a, b, c);
  };
  const int64_t vectors = r.aligned ? begin + (end - begin) / kVector * kVector : begin;
  for (int64_t i = begin + int64_t(threadIdx.x) * kVector; i < vectors; i += kThreads * kVector) {
    M p[kVector], g[kVector], s[kMaxStates][kVector] = {};
    load_own(r.param, r.dtype, i, p);
    load(r.grad, r.grad_dtype, i, g);
#pragma unroll
    for (int k = 0; k < kMaxStates; ++k) {
      if (kUsed >> k & 1u) load_own(r.states[k], r.dtype, i, s[k]);
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) p[j] = next(p[j], g[j], s[0][j], s[1][j], s[2][j]);
    store_own(r.param, r.dtype, i, p);
#pragma unroll
    for (int k = 0; k < kMaxStates; ++k) {
      if (kUsed >> k & 1u) store_own(r.states[k], r.dtype, i, s[k]);
    }
    if (r.copy != nullptr) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) p[j] = rounded(p[j], r.dtype);
      store(r.copy, r.copy_dtype, i, p);
    }
  }
  for (int64_t i = vectors + threadIdx.x; i < end; i += kThreads) {
    M s[kMaxStates] = {};
#pragma unroll
    for (int k = 0; k < kMaxStates; ++k) {
      if (kUsed >> k & 1u) s[k] = load_one<M>(r.states[k], r.dtype, i);
    }
    const M p = next(load_one<M>(r.param, r.dtype, i), load_one<M>(r.grad, r.grad_dtype, i), s[0],
                     s[1], s[2]);
    store_one(r.param, r.dtype, i, p);
#pragma unroll
    for (int k = 0; k < kMaxStates; ++k) {
      if (kUsed >> k & 1u) store_one(r.states[k], r.dtype, i, s[k]);
    }
    if (r.copy != nullptr) store_one(r.copy, r.copy_dtype, i, rounded(p, r.dtype));
  }
}

// The first of ``kUsed`` that is what is used.
template <unsigned kFirst, unsigned... kOthers, class Rule, class M>
__device__ __forceinline__ void choose(unsigned used, const Rule& rule, const Gradient<M>& gradient,
                                       const UpdateRecord& r, int64_t begin, int64_t end) {
  if (used == kFirst) {
    walk<kFirst>(rule, gradient, r, begin, end);
  } else if constexpr (sizeof...(kOthers) > 0) {
    choose<kOthers...>(used, rule, gradient, r, begin, end);
  }
}

// What the first thread makes for its block: powers of the step are not for every thread.
template <class Rule, class M>
struct Prepared {
  Rule rule;
  Gradient<M> gradient;
  unsigned used;
  bool skip;
};

template <template <class> class Rule, class M, unsigned... kUsed>
__global__ void __launch_bounds__(kThreads) update(const __grid_constant__ UpdateTable table) {
  using Mine = Prepared<Rule<M>, M>;
  __shared__ alignas(Mine) char memory[sizeof(Mine)];
  Mine& shared = *reinterpret_cast<Mine*>(memory);
  const int index = table.find(blockIdx.x);
  const UpdateRecord& record = table.records[index];
  if (threadIdx.x == 0) {
    const Options options = read_options(table.numbers);
    shared = Mine{Rule<M>(options, read_step(record)), Gradient<M>(options),
                  Rule<M>::used(options, table.numbers.given), skipped(table.numbers)};
  }
  __syncthreads();
  const Mine mine = shared;
  if (mine.skip) return;
  const int64_t begin = table.begin(index, blockIdx.x);
  const int64_t end = begin + kChunk < record.size ? begin + kChunk : record.size;
  choose<kUsed...>(mine.used, mine.rule, mine.gradient, record, begin, end);
}

template <template <class> class Rule, unsigned... kUsed>
struct Launch {
  // Numbers on the device cannot be asked here: what needs a state is then what has one.
  void check(const UpdateArguments& arguments) const {
    check_states<Rule>(arguments, arguments.options);
  }

  template <class M>
  void run(const std::vector<UpdateRecord>& records, const UpdateNumbers& numbers, const Operand&,
           cudaStream_t stream) const {
    launch_tables(records, numbers, [&](const UpdateTable& table, int32_t chunks) {
      update<Rule, M, kUsed...><<<chunks, kThreads, 0, stream>>>(table);
    });
  }
};

struct StepsTable {
  static constexpr int kMost = 3000;
  void* steps[kMost];
  bool wide[kMost];
  UpdateNumbers numbers;
};
static_assert(sizeof(StepsTable) <= kMaxParameter);

__global__ void add_one(const __grid_constant__ StepsTable table, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count || skipped(table.numbers)) return;
  if (table.wide[i]) {
    *static_cast<double*>(table.steps[i]) += 1;
  } else {
    *static_cast<float*>(table.steps[i]) += 1;
  }
}

}  // namespace

void count_steps(const UpdateArguments& arguments, const UpdateNumbers& numbers,
                 cudaStream_t stream) {
  StepsTable table;
  table.numbers = numbers;
  int count = 0;
  const auto flush = [&] {
    if (count == 0) return;
    add_one<<<(count + 255) / 256, 256, 0, stream>>>(table, count);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    count = 0;
  };
  for (const Operand& step : arguments.steps) {
    void* data = step.mutable_data();
    const bool wide = step.dtype == Dtype::kDouble;
    if (!step.on_cpu()) {
      table.steps[count] = data;
      table.wide[count++] = wide;
      if (count == StepsTable::kMost) flush();
    } else if (wide) {
      *static_cast<double*>(data) += 1;
    } else {
      *static_cast<float*>(data) += 1;
    }
  }
  flush();
}

namespace {

#define TG_UPDATE(Rule, name, optional, ...)                                               \
  void name##_update(StableIValue* stack, uint64_t, uint64_t) {                            \
    run_update(info<Rule>(#name "_update_", optional), false, stack,                       \
               Launch<Rule, __VA_ARGS__>());                                               \
  }                                                                                        \
  void name##_update_device(StableIValue* stack, uint64_t, uint64_t) {                     \
    run_update(info<Rule>(#name "_update_.device", optional), true, stack,                 \
               Launch<Rule, __VA_ARGS__>());                                               \
  }

TG_UPDATE(Sgd, sgd, 1u, 0, 1)
TG_UPDATE(Adam, adam, 4u, 3, 7)
TG_UPDATE(RmsProp, rmsprop, 6u, 1, 3, 5, 7)
TG_UPDATE(Adagrad, adagrad, 0u, 1)
TG_UPDATE(Adadelta, adadelta, 0u, 3)
TG_UPDATE(Lion, lion, 0u, 1)

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CUDA, library) {
  using namespace torchgraph;
  library.impl("sgd_update_", sgd_update);
  library.impl("sgd_update_.device", sgd_update_device);
  library.impl("adam_update_", adam_update);
  library.impl("adam_update_.device", adam_update_device);
  library.impl("rmsprop_update_", rmsprop_update);
  library.impl("rmsprop_update_.device", rmsprop_update_device);
  library.impl("adagrad_update_", adagrad_update);
  library.impl("adagrad_update_.device", adagrad_update_device);
  library.impl("adadelta_update_", adadelta_update);
  library.impl("adadelta_update_.device", adadelta_update_device);
  library.impl("lion_update_", lion_update);
  library.impl("lion_update_.device", lion_update_device);
}
