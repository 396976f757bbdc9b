// torchgraph::cross_entropy and its backward on CUDA: a team of threads for each row.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include <cassert>

#include "cross_entropy/arguments.h"

namespace torchgraph {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;     // of a block: one team, or a team per warp
constexpr int64_t kSmall = 2048;  // classes up to which a warp is a team
constexpr unsigned kAll = 0xffffffffu;

// What a thread loads at once: 16 bytes.
template <class S>
struct alignas(16) Vector {
  static constexpr int size = 16 / sizeof(S);
  S values[size];
};

struct Losses {
  LossProblem problem;
  double* lse;
  double* each;  // losses per row
};

struct Gradients {
  LossProblem problem;
  const double* lse;
  int64_t lse_stride;
  const void* grad;  // of the loss, in the wide type
  int64_t grad_stride;
  const void* total_weight;  // null: the gradient is not divided by it
  const double* weights;     // of all classes together; null: as many as there are classes
  void* out;
  int64_t row_stride, class_stride;
};

// The rows of a launch: kTeam threads take one row after the other.
template <int kTeam>
struct Rows {
  static constexpr int teams = kThreads / kTeam;
  static __device__ int64_t first() { return int64_t(blockIdx.x) * teams + threadIdx.x / kTeam; }
  static __device__ int64_t step() { return int64_t(gridDim.x) * teams; }
  static __device__ int place() { return threadIdx.x % kTeam; }
};

__device__ bool is_class(const LossProblem& problem, int64_t target) {
  const bool fits = target >= 0 && target < problem.classes;
  assert(fits && "a target of cross_entropy is out of bounds");
  return fits;
}

// Where a row's vectors begin; the row's length when it has none.
template <class S>
__device__ int64_t aligned_from(const S* row, int64_t stride, int64_t n) {
  const auto past = reinterpret_cast<uintptr_t>(row) % sizeof(Vector<S>);
  if (stride != 1 || past % sizeof(S) != 0) return n;
  const int64_t skipped = past == 0 ? 0 : (sizeof(Vector<S>) - past) / sizeof(S);
  return skipped < n ? skipped : n;
}

template <bool kSmooth, class A>
__device__ void merge_lanes(Sweep<A>& sweep) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    Sweep<A> other;
    other.max = __shfl_xor_sync(kAll, sweep.max, distance);
    other.sum = __shfl_xor_sync(kAll, sweep.sum, distance);
    if constexpr (kSmooth) {
      other.weights = __shfl_xor_sync(kAll, sweep.weights, distance);
      other.distance = __shfl_xor_sync(kAll, sweep.distance, distance);
    }
    sweep.template merge<kSmooth>(other);
  }
}

// What the team's threads know, in its first thread.
template <bool kSmooth, int kTeam, class A>
__device__ void merge_team(Sweep<A>& sweep) {
  merge_lanes<kSmooth>(sweep);
  if constexpr (kTeam > kWarp) {
    constexpr int warps = kTeam / kWarp;
    __shared__ A parts[warps][4];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    __syncthreads();  // the row before has been read
    if (lane == 0) {
      parts[warp][0] = sweep.max;
      parts[warp][1] = sweep.sum;
      parts[warp][2] = sweep.weights;
      parts[warp][3] = sweep.distance;
    }
    __syncthreads();
    if (warp == 0) {
      sweep = Sweep<A>();
      if (lane < warps) {
        sweep.max = parts[lane][0];
        sweep.sum = parts[lane][1];
        sweep.weights = parts[lane][2];
        sweep.distance = parts[lane][3];
      }
      merge_lanes<kSmooth>(sweep);
    }
  }
}

template <class S, bool kSmooth>
__device__ void absorb_vector(Sweep<wide_t<S>>& sweep, const S* logits, const wide_t<S>* weight) {
  using A = wide_t<S>;
  constexpr int size = Vector<S>::size;
  const auto loaded = *reinterpret_cast<const Vector<S>*>(logits);
  A x[size];
#pragma unroll
  for (int i = 0; i < size; ++i) x[i] = widen(loaded.values[i]);
  sweep.template absorb<kSmooth>(x, weight, size);
}

template <class S, bool kSmooth, int kTeam>
__global__ void __launch_bounds__(kThreads) forward(const Losses job) {
  using A = wide_t<S>;
  constexpr int size = Vector<S>::size;
  const LossProblem& problem = job.problem;
  const A* weight = static_cast<const A*>(problem.weight);
  const int place = Rows<kTeam>::place();
  for (int64_t row = Rows<kTeam>::first(); row < problem.rows; row += Rows<kTeam>::step()) {
    const int64_t target = problem.target(row);
    const bool counts = target != problem.ignored && is_class(problem, target);
    if (!counts) {  // for all threads of the team alike
      if (place == 0) job.lse[row] = job.each[row] = 0;
      continue;
    }
    const S* logits = static_cast<const S*>(problem.logits) + row * problem.row_stride;
    const int64_t begin = aligned_from(logits, problem.class_stride, problem.classes);
    const int64_t end = begin + (problem.classes - begin) / size * size;
    Sweep<A> sweep;
    for (int64_t at = begin + int64_t(place) * size; at < end; at += kTeam * size)
      absorb_vector<S, kSmooth>(sweep, logits + at, weight ? weight + at : nullptr);
    for (int64_t i = place; i < problem.classes - (end - begin); i += kTeam) {
      const int64_t at = i < begin ? i : i + (end - begin);
      const A x = widen(logits[at * problem.class_stride]);
      sweep.template absorb<kSmooth>(&x, weight ? weight + at : nullptr, 1);
    }
    merge_team<kSmooth, kTeam>(sweep);
    if (place == 0) {
      const A x = widen(logits[target * problem.class_stride]);
      const A w = problem.weight_of<A>(target);
      job.lse[row] = sweep.lse();
      job.each[row] = sweep.template loss<kSmooth>(x, w, problem.smoothing);
    }
  }
}

template <class S, bool kSmooth, int kTeam>
__global__ void __launch_bounds__(kThreads) backward(const Gradients job) {
  using A = wide_t<S>;
  constexpr int size = Vector<S>::size;
  const LossProblem& problem = job.problem;
  const double total =
      job.total_weight == nullptr ? 1.0 : double(*static_cast<const A*>(job.total_weight));
  const double weights = job.weights == nullptr ? double(problem.classes) : *job.weights;
  const int place = Rows<kTeam>::place();
  for (int64_t row = Rows<kTeam>::first(); row < problem.rows; row += Rows<kTeam>::step()) {
    const S* logits = static_cast<const S*>(problem.logits) + row * problem.row_stride;
    S* out = static_cast<S*>(job.out) + row * job.row_stride;
    const int64_t target = problem.target(row);
    const bool counts = target != problem.ignored && is_class(problem, target);
    const double grad = double(static_cast<const A*>(job.grad)[row * job.grad_stride]) / total;
    const A of_target = counts ? problem.weight_of<A>(target) : A(0);
    const LogitsGradient<A> gradient(job.lse[row * job.lse_stride], grad, double(of_target),
                                     weights, problem.smoothing);
    const auto at_class = [&](S x, int64_t at) {
      S result{};
      if (counts) {
        const A w = kSmooth ? problem.weight_of<A>(at) : A(1);
        const A value = gradient.template operator()<kSmooth>(widen(x), w);
        narrow(at == target ? value - gradient.target : value, result);
      }
      return result;
    };
    int64_t begin = aligned_from(logits, problem.class_stride, problem.classes);
    if (begin != aligned_from(out, job.class_stride, problem.classes)) begin = problem.classes;
    const int64_t end = begin + (problem.classes - begin) / size * size;
    for (int64_t at = begin + int64_t(place) * size; at < end; at += kTeam * size) {
      auto vector = *reinterpret_cast<const Vector<S>*>(logits + at);
#pragma unroll
      for (int i = 0; i < size; ++i) vector.values[i] = at_class(vector.values[i], at + i);
      *reinterpret_cast<Vector<S>*>(out + at) = vector;
    }
    for (int64_t i = place; i < problem.classes - (end - begin); i += kTeam) {
      const int64_t at = i < begin ? i : i + (end - begin);
      out[at * job.class_stride] = at_class(logits[at * problem.class_stride], at);
    }
  }
}

// The sum of what `value` gives for 0 to n, in the first thread of the only block.
template <class F>
__device__ double sum_of_block(int64_t n, F value) {
  __shared__ double parts[kThreads / kWarp];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += value(i);
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(kAll, sum, distance);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) sum += parts[i];
  return sum;
}

// One block: rows are few beside logits, and their order of addition is always the same.
template <class A>
__global__ void __launch_bounds__(kThreads)
    reduce(const LossProblem problem, const double* each, int64_t reduction, A* loss, A* total) {
  const double weight = sum_of_block(problem.rows, [&](int64_t row) {
    const int64_t target = problem.target(row);
    const bool counts = target != problem.ignored && is_class(problem, target);
    return counts ? double(problem.weight_of<A>(target)) : 0.0;
  });
  if (threadIdx.x == 0) *total = A(weight);
  if (reduction == kNone) {
    for (int64_t row = threadIdx.x; row < problem.rows; row += kThreads) loss[row] = A(each[row]);
    return;
  }
  const double sum = sum_of_block(problem.rows, [&](int64_t row) { return each[row]; });
  if (threadIdx.x == 0) *loss = A(reduction == kMean ? sum / weight : sum);
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    add_weights(const A* weight, int64_t classes, double* sum) {
  const double all = sum_of_block(classes, [&](int64_t i) { return double(weight[i]); });
  if (threadIdx.x == 0) *sum = all;
}

cudaStream_t stream_of(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

unsigned blocks(int64_t rows, int64_t teams) {
  constexpr int64_t kMost = 1 << 30;  // beyond it a block takes several rows
  const int64_t wanted = (rows + teams - 1) / teams;
  return static_cast<unsigned>(wanted < kMost ? wanted : kMost);
}

// Calls `launch` with a null pointer to the element type of the logits.
template <class F>
void for_dtype(ScalarType dtype, F launch) {
  switch (dtype) {
    case ScalarType::Double: return launch(static_cast<double*>(nullptr));
    case ScalarType::BFloat16: return launch(static_cast<BFloat16*>(nullptr));
    case ScalarType::Half: return launch(static_cast<Half*>(nullptr));
    default: return launch(static_cast<float*>(nullptr));
  }
}

template <class S, bool kSmooth>
void launch_forward(const Losses& job, cudaStream_t stream) {
  const int64_t rows = job.problem.rows;
  if (job.problem.classes <= kSmall) {
    forward<S, kSmooth, kWarp>
        <<<blocks(rows, Rows<kWarp>::teams), kThreads, 0, stream>>>(job);
  } else {
    forward<S, kSmooth, kThreads><<<blocks(rows, 1), kThreads, 0, stream>>>(job);
  }
}

template <class S, bool kSmooth>
void launch_backward(const Gradients& job, cudaStream_t stream) {
  const int64_t rows = job.problem.rows;
  if (job.problem.classes <= kSmall) {
    backward<S, kSmooth, kWarp>
        <<<blocks(rows, Rows<kWarp>::teams), kThreads, 0, stream>>>(job);
  } else {
    backward<S, kSmooth, kThreads><<<blocks(rows, 1), kThreads, 0, stream>>>(job);
  }
}

std::tuple<Tensor, Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& target,
                                                 const std::optional<Tensor>& weight,
                                                 int64_t reduction, int64_t ignore_index,
                                                 double label_smoothing) {
  check_arguments(logits, target, weight, reduction, label_smoothing);
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = stream_of(logits);
  const std::optional<Tensor> weights = adjacent(weight);
  const LossProblem problem =
      loss_problem(logits, target, weights, ignore_index, label_smoothing);
  const auto [loss, lse, total_weight] = empty_results(logits, reduction);
  const std::vector<int64_t> rows{problem.rows};
  const Tensor each = torch::stable::new_empty(logits, rows, ScalarType::Double);
  const Losses job{problem, static_cast<double*>(lse.mutable_data_ptr()),
                   static_cast<double*>(each.mutable_data_ptr())};
  void* out = loss.mutable_data_ptr();
  void* total = total_weight.mutable_data_ptr();
  for_dtype(logits.scalar_type(), [&](auto* kind) {
    using S = std::remove_pointer_t<decltype(kind)>;
    using A = wide_t<S>;
    if (problem.rows > 0) {
      problem.smooth ? launch_forward<S, true>(job, stream)
                     : launch_forward<S, false>(job, stream);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
    reduce<A><<<1, kThreads, 0, stream>>>(problem, job.each, reduction, static_cast<A*>(out),
                                          static_cast<A*>(total));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {loss, lse, total_weight};
}

void write_gradient(const Tensor& logits, const Tensor& grad_loss, const Tensor& target,
                    const Tensor& lse, const Tensor& total_weight,
                    const std::optional<Tensor>& weight, int64_t reduction, int64_t ignore_index,
                    double label_smoothing, const Tensor& out) {
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = stream_of(logits);
  const std::optional<Tensor> weights = adjacent(weight);
  const LossProblem problem =
      loss_problem(logits, target, weights, ignore_index, label_smoothing);
  if (problem.rows == 0 || problem.classes == 0) return;
  const std::vector<int64_t> scalar;
  const bool weighted = problem.smooth && weights.has_value();
  const Tensor sum = torch::stable::new_empty(logits, scalar, ScalarType::Double);
  auto* added = static_cast<double*>(sum.mutable_data_ptr());
  const Gradients job{problem,
                      static_cast<const double*>(lse.const_data_ptr()),
                      lse.stride(0),
                      grad_loss.const_data_ptr(),
                      reduction == kNone ? grad_loss.stride(0) : 0,
                      reduction == kMean ? total_weight.const_data_ptr() : nullptr,
                      weighted ? added : nullptr,
                      out.mutable_data_ptr(),
                      out.stride(0),
                      out.stride(1)};
  for_dtype(logits.scalar_type(), [&](auto* kind) {
    using S = std::remove_pointer_t<decltype(kind)>;
    using A = wide_t<S>;
    if (weighted) {
      add_weights<A><<<1, kThreads, 0, stream>>>(static_cast<const A*>(problem.weight),
                                                 problem.classes, added);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
    problem.smooth ? launch_backward<S, true>(job, stream)
                   : launch_backward<S, false>(job, stream);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CUDA, library) {
  library.impl("cross_entropy", TORCH_BOX(&torchgraph::cross_entropy));
  library.impl("cross_entropy_backward", TORCH_BOX(&torchgraph::cross_entropy_backward<torchgraph::write_gradient>));
  library.impl("cross_entropy_backward_", TORCH_BOX(&torchgraph::cross_entropy_backward_<torchgraph::write_gradient>));
}
