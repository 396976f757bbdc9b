// LAMB on CUDA: the moments and the two lengths of each tensor, their ratio, the step.
#include "model_update/tables.h"

namespace torchgraph {
namespace {

template <class M>
struct Prepared {
  Lamb<M> rule;
  Gradient<M> gradient;
  bool skip;
};

template <class M>
__device__ __forceinline__ Prepared<M> prepare(const UpdateTable& table, const UpdateRecord& record,
                                               void* memory) {
  auto* shared = static_cast<Prepared<M>*>(memory);
  if (threadIdx.x == 0) {
    const Options options = read_options(table.numbers);
    *shared = Prepared<M>{Lamb<M>(options, read_step(record)), Gradient<M>(options),
                          skipped(table.numbers)};
  }
  __syncthreads();
  return *shared;
}

// What one element adds to the squares of the lengths.
struct Squares {
  double size = 0, length = 0;

  template <class M>
  __device__ __forceinline__ void add(const Lamb<M>& rule, M p, M first, M second) {
    const double change = rule.change(p, first, second);
    size += double(p) * double(p);
    length += change * change;
  }
};

// ``sums``: two numbers for each chunk.
template <class M>
__global__ void __launch_bounds__(kThreads)
    moments(const __grid_constant__ UpdateTable table, double* sums) {
  __shared__ alignas(16) char memory[sizeof(Prepared<M>)];
  const int index = table.find(blockIdx.x);
  const UpdateRecord& r = table.records[index];
  const Prepared<M> mine = prepare<M>(table, r, memory);
  if (mine.skip) return;
  const int64_t begin = table.begin(index, blockIdx.x);
  const int64_t end = begin + kChunk < r.size ? begin + kChunk : r.size;
  const int64_t vectors = r.aligned ? begin + (end - begin) / kVector * kVector : begin;
  Squares squares;
  const auto next = [&](M p, M g, M& first, M& second) {
    mine.rule.moments(p, mine.gradient.template prepare<kPenalized>(g, p), first, second);
    squares.add(mine.rule, p, rounded(first, r.dtype), rounded(second, r.dtype));
  };
  for (int64_t i = begin + int64_t(threadIdx.x) * kVector; i < vectors; i += kThreads * kVector) {
    M p[kVector], g[kVector], first[kVector], second[kVector];
    load_own(r.param, r.dtype, i, p);
    load(r.grad, r.grad_dtype, i, g);
    load_own(r.states[0], r.dtype, i, first);
    load_own(r.states[1], r.dtype, i, second);
#pragma unroll
    for (int j = 0; j < kVector; ++j) next(p[j], g[j], first[j], second[j]);
    store_own(r.states[0], r.dtype, i, first);
    store_own(r.states[1], r.dtype, i, second);
  }
  for (int64_t i = vectors + threadIdx.x; i < end; i += kThreads) {
    M first = load_one<M>(r.states[0], r.dtype, i), second = load_one<M>(r.states[1], r.dtype, i);
    next(load_one<M>(r.param, r.dtype, i), load_one<M>(r.grad, r.grad_dtype, i), first, second);
    store_one(r.states[0], r.dtype, i, first);
    store_one(r.states[1], r.dtype, i, second);
  }
  const double size = sum_over_block(squares.size);
  const double length = sum_over_block(squares.length);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = size;
    sums[2 * blockIdx.x + 1] = length;
  }
}

// A block for each record.
template <class M>
__global__ void __launch_bounds__(kThreads)
    ratios(const __grid_constant__ UpdateTable table, const double* sums, double* out) {
  if (skipped(table.numbers)) return;
  const int index = blockIdx.x;
  double size = 0, length = 0;
  for (int i = (index == 0 ? 0 : table.ends[index - 1]) + threadIdx.x; i < table.ends[index];
       i += kThreads) {
    size += sums[2 * i];
    length += sums[2 * i + 1];
  }
  size = sum_over_block(size);
  length = sum_over_block(length);
  if (threadIdx.x == 0) out[index] = Lamb<M>::ratio(size, length);
}

template <class M>
__global__ void __launch_bounds__(kThreads)
    apply(const __grid_constant__ UpdateTable table, const double* ratios) {
  __shared__ alignas(16) char memory[sizeof(Prepared<M>)];
  const int index = table.find(blockIdx.x);
  const UpdateRecord& r = table.records[index];
  const Prepared<M> mine = prepare<M>(table, r, memory);
  if (mine.skip) return;
  const M ratio = static_cast<M>(ratios[index]);
  const int64_t begin = table.begin(index, blockIdx.x);
  const int64_t end = begin + kChunk < r.size ? begin + kChunk : r.size;
  const int64_t vectors = r.aligned ? begin + (end - begin) / kVector * kVector : begin;
  for (int64_t i = begin + int64_t(threadIdx.x) * kVector; i < vectors; i += kThreads * kVector) {
    M p[kVector], first[kVector], second[kVector];
    load_own(r.param, r.dtype, i, p);
    load_own(r.states[0], r.dtype, i, first);
    load_own(r.states[1], r.dtype, i, second);
#pragma unroll
    for (int j = 0; j < kVector; ++j) p[j] = mine.rule.next(p[j], first[j], second[j], ratio);
    store_own(r.param, r.dtype, i, p);
    if (r.copy != nullptr) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) p[j] = rounded(p[j], r.dtype);
      store(r.copy, r.copy_dtype, i, p);
    }
  }
  for (int64_t i = vectors + threadIdx.x; i < end; i += kThreads) {
    const M p = mine.rule.next(load_one<M>(r.param, r.dtype, i), load_one<M>(r.states[0], r.dtype, i),
                               load_one<M>(r.states[1], r.dtype, i), ratio);
    store_one(r.param, r.dtype, i, p);
    if (r.copy != nullptr) store_one(r.copy, r.copy_dtype, i, rounded(p, r.dtype));
  }
}

struct Launch {
  void check(const UpdateArguments& arguments) const {
    check_states<Lamb>(arguments, arguments.options);
  }

  template <class M>
  void run(const std::vector<UpdateRecord>& records, const UpdateNumbers& numbers,
           const Operand& like, cudaStream_t stream) const {
    launch_tables(records, numbers, [&](const UpdateTable& table, int32_t chunks) {
      const Operand memory = workspace(like, 2 * int64_t(chunks) + table.count);
      auto* sums = static_cast<double*>(memory.mutable_data());
      double* ratio = sums + 2 * int64_t(chunks);
      moments<M><<<chunks, kThreads, 0, stream>>>(table, sums);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
      ratios<M><<<table.count, kThreads, 0, stream>>>(table, sums, ratio);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
      apply<M><<<chunks, kThreads, 0, stream>>>(table, ratio);
    });
  }
};

void lamb_update(StableIValue* stack, uint64_t, uint64_t) {
  run_update(info<Lamb>("lamb_update_"), false, stack, Launch());
}
void lamb_update_device(StableIValue* stack, uint64_t, uint64_t) {
  run_update(info<Lamb>("lamb_update_.device"), true, stack, Launch());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CUDA, library) {
  library.impl("lamb_update_", torchgraph::lamb_update);
  library.impl("lamb_update_.device", torchgraph::lamb_update_device);
}
