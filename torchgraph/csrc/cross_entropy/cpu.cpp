// torchgraph::cross_entropy and its backward on the CPU: a row's logits go through the cache once.
// Where the rows of a class lie side by side, as in the product of a transposed matrix, a few rows
// are read together.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/clones.h"
#include "cross_entropy/arguments.h"

namespace torchgraph {
namespace {

constexpr int64_t kBlock = 1024;       // logits that are looked at twice, in the first-level cache
constexpr int64_t kAtOnce = 16 * 1024;  // logits for which another thread is worth its start
// Rows that are read together where they, and not classes, lie side by side; fewer are read one
// after the other. Loops of a constant length are vector code.
constexpr int64_t kMany = 64, kSome = 16;
constexpr int64_t kClasses = 256;  // of many rows, in the second-level cache

struct Losses {
  LossProblem problem;
  int64_t chunk;        // rows that are summed up together
  double* lse;          // per row
  void* each;           // losses per row, or null
  double *sum, *total;  // losses and weights, per chunk
};

struct Gradients {
  LossProblem problem;
  const double* lse;
  int64_t lse_stride;
  const void* grad;  // of the loss, in the wide type
  int64_t grad_stride;
  double scale, weights;
  void* out;
  int64_t row_stride, class_stride;
};

// n logits in the wide type: where they are, or in the buffer.
template <class S>
TG_INLINE const wide_t<S>* read(const S* from, int64_t stride, int64_t n, wide_t<S>* buffer) {
  if constexpr (std::is_same_v<S, wide_t<S>>) {
    if (stride == 1) return from;
  }
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) buffer[i] = widen(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = widen(from[i * stride]);
  }
  return buffer;
}

TG_INLINE bool across_rows(const LossProblem& problem) {
  return problem.row_stride == 1 && problem.class_stride != 1;
}

// How many of `left` rows are computed next.
TG_INLINE int64_t rows_of(const LossProblem& problem, int64_t left) {
  if (!across_rows(problem) || left < kSome) return 1;
  return left >= kMany ? kMany : kSome;
}

// --- a row after the other ------------------------------------------------------------------------

template <class S>
TG_INLINE const S* logits_of(const LossProblem& problem, int64_t row) {
  return static_cast<const S*>(problem.logits) + row * problem.row_stride;
}

template <class S, bool kSmooth>
TG_INLINE void sweep_row(const LossProblem& problem, int64_t row, Sweep<wide_t<S>>& sweep) {
  using A = wide_t<S>;
  const A* weight = static_cast<const A*>(problem.weight);
  const S* logits = logits_of<S>(problem, row);
  A buffer[kBlock];
  for (int64_t at = 0; at < problem.classes; at += kBlock) {
    const int64_t n = std::min(kBlock, problem.classes - at);
    const A* x = read(logits + at * problem.class_stride, problem.class_stride, n, buffer);
    sweep.template absorb<kSmooth>(x, weight ? weight + at : nullptr, n);
  }
}

template <class S>
TG_INLINE LogitsGradient<wide_t<S>> gradient_of_row(const Gradients& job, int64_t row) {
  const LossProblem& problem = job.problem;
  const int64_t target = problem.target(row);
  const bool kept = target != problem.ignored;
  const double grad = double(static_cast<const wide_t<S>*>(job.grad)[row * job.grad_stride]);
  const double w = kept ? double(problem.weight_of<wide_t<S>>(target)) : 0.0;
  return {job.lse[row * job.lse_stride], grad * job.scale, w, job.weights, problem.smoothing};
}

template <class S, bool kSmooth>
TG_INLINE void write_row(const Gradients& job, int64_t row) {
  using A = wide_t<S>;
  const LossProblem& problem = job.problem;
  const A* weight = static_cast<const A*>(problem.weight);
  const S* logits = logits_of<S>(problem, row);
  const int64_t target = problem.target(row);
  const LogitsGradient<A> gradient = gradient_of_row<S>(job, row);
  A made[kBlock];
  for (int64_t at = 0; at < problem.classes; at += kBlock) {
    const int64_t n = std::min(kBlock, problem.classes - at);
    const A* x = read(logits + at * problem.class_stride, problem.class_stride, n, made);
    if (target == problem.ignored) {
      std::fill_n(made, n, A(0));
    } else if (kSmooth && weight != nullptr) {
      for (int64_t i = 0; i < n; ++i)
        made[i] = gradient.template operator()<kSmooth>(x[i], weight[at + i]);
    } else {
      for (int64_t i = 0; i < n; ++i) made[i] = gradient.template operator()<kSmooth>(x[i], A(1));
    }
    if (target != problem.ignored && at <= target && target < at + n)
      made[target - at] -= gradient.target;
    S* out = static_cast<S*>(job.out) + row * job.row_stride + at * job.class_stride;
    if (job.class_stride == 1) {
      for (int64_t i = 0; i < n; ++i) narrow(made[i], out[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) narrow(made[i], out[i * job.class_stride]);
    }
  }
}

// --- rows that lie side by side, a class after the other ------------------------------------------

template <int64_t kN, class S, bool kSmooth>
TG_INLINE void sweep_rows(const LossProblem& problem, int64_t first, Sweep<wide_t<S>>* sweeps) {
  using A = wide_t<S>;
  const int64_t stride = problem.class_stride;
  for (int64_t at = 0; at < problem.classes; at += kClasses) {
    const int64_t n = std::min(kClasses, problem.classes - at);
    const S* x = logits_of<S>(problem, first) + at * stride;
    A highest[kN], from[kN], sum[kN] = {}, distance[kN] = {}, weights = 0;
    std::fill_n(highest, kN, Sweep<A>::kNothing);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < kN; ++r) {
        const A value = widen(x[i * stride + r]);
        highest[r] = value > highest[r] ? value : highest[r];
      }
    for (int64_t r = 0; r < kN; ++r) from[r] = Sweep<A>::reference(highest[r]);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < kN; ++r) sum[r] += exponential(widen(x[i * stride + r]) - from[r]);
    for (int64_t i = 0; kSmooth && i < n; ++i) {
      const A w = problem.weight_of<A>(at + i);
      weights += w;
      for (int64_t r = 0; r < kN; ++r) distance[r] += w * (widen(x[i * stride + r]) - from[r]);
    }
    for (int64_t r = 0; r < kN; ++r)
      sweeps[r].template merge<kSmooth>({highest[r], sum[r], weights, distance[r]});
  }
}

template <int64_t kN, class S, bool kSmooth>
TG_INLINE void write_rows(const Gradients& job, int64_t first) {
  using A = wide_t<S>;
  const LossProblem& problem = job.problem;
  const int64_t stride = problem.class_stride;
  const S* x = logits_of<S>(problem, first);
  S* out = static_cast<S*>(job.out) + first * job.row_stride;
  A high[kN], low[kN], softmax[kN], uniform[kN], at_target[kN] = {}, kept[kN];
  for (int64_t r = 0; r < kN; ++r) {
    const LogitsGradient<A> gradient = gradient_of_row<S>(job, first + r);
    const int64_t target = problem.target(first + r);
    kept[r] = A(target != problem.ignored);
    high[r] = gradient.high;
    low[r] = gradient.low;
    softmax[r] = gradient.softmax;
    uniform[r] = gradient.uniform;
    if (kept[r] != A(0)) {  // before it is overwritten: the gradient may take the logits' place
      const A w = problem.weight_of<A>(target);
      at_target[r] =
          gradient.template operator()<kSmooth>(widen(x[target * stride + r]), w) - gradient.target;
    }
  }
  for (int64_t i = 0; i < problem.classes; ++i) {
    const A w = kSmooth ? problem.weight_of<A>(i) : A(1);
    A made[kN];  // they are not written at once: the compiler cannot see that no two overlap
    for (int64_t r = 0; r < kN; ++r) {
      const A probability = exponential((widen(x[i * stride + r]) - high[r]) - low[r]) * softmax[r];
      const A found = kSmooth ? probability - uniform[r] * w : probability;
      made[r] = kept[r] != A(0) ? found : A(0);
    }
    S* to = out + i * job.class_stride;
    if (job.row_stride == 1) {
      for (int64_t r = 0; r < kN; ++r) narrow(made[r], to[r]);
    } else {
      for (int64_t r = 0; r < kN; ++r) narrow(made[r], to[r * job.row_stride]);
    }
  }
  for (int64_t r = 0; r < kN; ++r)
    if (kept[r] != A(0))
      narrow(at_target[r], out[problem.target(first + r) * job.class_stride + r * job.row_stride]);
}

// --- jobs -----------------------------------------------------------------------------------------

template <class S, bool kSmooth>
TG_INLINE void forward_rows(const Losses& job, int64_t begin, int64_t end, double& sum,
                            double& total) {
  using A = wide_t<S>;
  const LossProblem& problem = job.problem;
  for (int64_t first = begin, rows; first < end; first += rows) {
    rows = rows_of(problem, end - first);
    Sweep<A> sweeps[kMany];
    if (rows == kMany) {
      sweep_rows<kMany, S, kSmooth>(problem, first, sweeps);
    } else if (rows == kSome) {
      sweep_rows<kSome, S, kSmooth>(problem, first, sweeps);
    } else if (problem.target(first) != problem.ignored) {
      sweep_row<S, kSmooth>(problem, first, sweeps[0]);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = first + r, target = problem.target(row);
      double loss = 0;
      job.lse[row] = 0;
      if (target != problem.ignored) {
        const A at_target = widen(logits_of<S>(problem, row)[target * problem.class_stride]);
        const A w = problem.weight_of<A>(target);
        loss = sweeps[r].template loss<kSmooth>(at_target, w, problem.smoothing);
        job.lse[row] = sweeps[r].lse();
        total += double(w);
      }
      if (job.each != nullptr) static_cast<A*>(job.each)[row] = A(loss);
      sum += loss;
    }
  }
}

template <class S>
TG_INLINE void forward(const Losses& job, int64_t begin, int64_t end) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t first = chunk * job.chunk;
    const int64_t last = std::min(first + job.chunk, job.problem.rows);
    double sum = 0, total = 0;
    if (job.problem.smooth) {
      forward_rows<S, true>(job, first, last, sum, total);
    } else {
      forward_rows<S, false>(job, first, last, sum, total);
    }
    job.sum[chunk] = sum;
    job.total[chunk] = total;
  }
}

template <class S, bool kSmooth>
TG_INLINE void backward_rows(const Gradients& job, int64_t begin, int64_t end) {
  for (int64_t first = begin, rows; first < end; first += rows) {
    rows = rows_of(job.problem, end - first);
    if (rows == kMany) {
      write_rows<kMany, S, kSmooth>(job, first);
    } else if (rows == kSome) {
      write_rows<kSome, S, kSmooth>(job, first);
    } else {
      write_row<S, kSmooth>(job, first);
    }
  }
}

template <class S>
TG_INLINE void backward(const Gradients& job, int64_t begin, int64_t end) {
  if (job.problem.smooth) {
    backward_rows<S, true>(job, begin, end);
  } else {
    backward_rows<S, false>(job, begin, end);
  }
}

// Functions with clones cannot be templates.
TG_CLONES void forward_float(const Losses& j, int64_t b, int64_t e) { forward<float>(j, b, e); }
TG_CLONES void forward_double(const Losses& j, int64_t b, int64_t e) { forward<double>(j, b, e); }
TG_CLONES void forward_bf16(const Losses& j, int64_t b, int64_t e) { forward<BFloat16>(j, b, e); }
TG_CLONES void forward_half(const Losses& j, int64_t b, int64_t e) { forward<Half>(j, b, e); }
TG_CLONES void backward_float(const Gradients& j, int64_t b, int64_t e) { backward<float>(j, b, e); }
TG_CLONES void backward_double(const Gradients& j, int64_t b, int64_t e) {
  backward<double>(j, b, e);
}
TG_CLONES void backward_bf16(const Gradients& j, int64_t b, int64_t e) {
  backward<BFloat16>(j, b, e);
}
TG_CLONES void backward_half(const Gradients& j, int64_t b, int64_t e) { backward<Half>(j, b, e); }

template <class Job>
using Kernel = void (*)(const Job&, int64_t, int64_t);

template <class Job>
Kernel<Job> choose(ScalarType dtype, Kernel<Job> for_float, Kernel<Job> for_double,
                   Kernel<Job> for_bf16, Kernel<Job> for_half) {
  switch (dtype) {
    case ScalarType::Double: return for_double;
    case ScalarType::BFloat16: return for_bf16;
    case ScalarType::Half: return for_half;
    default: return for_float;
  }
}

// Before anything is computed: a wrong target leaves nothing half done.
void check_targets(const LossProblem& problem) {
  for (int64_t row = 0; row < problem.rows; ++row) {
    const int64_t target = problem.target(row);
    if (target != problem.ignored && (target < 0 || target >= problem.classes))
      throw std::out_of_range("Target " + std::to_string(target) + " is out of bounds.");
  }
}

double sum_of_weights(const LossProblem& problem, ScalarType dtype) {
  if (problem.weight == nullptr) return static_cast<double>(problem.classes);
  double sum = 0;
  for (int64_t i = 0; i < problem.classes; ++i)
    sum += dtype == ScalarType::Double ? problem.weight_of<double>(i) : problem.weight_of<float>(i);
  return sum;
}

void store(const Tensor& number, double value) {
  if (number.scalar_type() == ScalarType::Double) {
    *static_cast<double*>(number.mutable_data_ptr()) = value;
  } else {
    *static_cast<float*>(number.mutable_data_ptr()) = static_cast<float>(value);
  }
}

double load(const Tensor& number) {
  return number.scalar_type() == ScalarType::Double
             ? *static_cast<const double*>(number.const_data_ptr())
             : static_cast<double>(*static_cast<const float*>(number.const_data_ptr()));
}

// Rows that one thread takes at least, so that its start is worth it.
int64_t share(const LossProblem& problem) {
  const int64_t together = across_rows(problem) ? kMany : 1;
  const int64_t found = kAtOnce / std::max<int64_t>(1, problem.classes);
  return std::max<int64_t>(1, found / together) * together;
}

std::tuple<Tensor, Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& target,
                                                 const std::optional<Tensor>& weight,
                                                 int64_t reduction, int64_t ignore_index,
                                                 double label_smoothing) {
  check_arguments(logits, target, weight, reduction, label_smoothing);
  const std::optional<Tensor> weights = adjacent(weight);
  const LossProblem problem =
      loss_problem(logits, target, weights, ignore_index, label_smoothing);
  check_targets(problem);
  const auto [loss, lse, total_weight] = empty_results(logits, reduction);

  // The sums' order depends on the sizes alone, not on the number of threads.
  const int64_t chunk = share(problem), chunks = (problem.rows + chunk - 1) / chunk;
  std::vector<double> sums(chunks), totals(chunks);
  const Losses job{problem,
                   chunk,
                   static_cast<double*>(lse.mutable_data_ptr()),
                   reduction == kNone ? loss.mutable_data_ptr() : nullptr,
                   sums.data(),
                   totals.data()};
  const auto kernel = choose<Losses>(logits.scalar_type(), forward_float, forward_double,
                                     forward_bf16, forward_half);
  torch::stable::parallel_for(0, chunks, 1, [&](int64_t b, int64_t e) { kernel(job, b, e); });

  double sum = 0, total = 0;
  for (int64_t i = 0; i < chunks; ++i) {
    sum += sums[i];
    total += totals[i];
  }
  store(total_weight, total);
  if (reduction != kNone) store(loss, reduction == kMean ? sum / total : sum);
  return {loss, lse, total_weight};
}

void write_gradient(const Tensor& logits, const Tensor& grad_loss, const Tensor& target,
                    const Tensor& lse, const Tensor& total_weight,
                    const std::optional<Tensor>& weight, int64_t reduction, int64_t ignore_index,
                    double label_smoothing, const Tensor& out) {
  const std::optional<Tensor> weights = adjacent(weight);
  const LossProblem problem =
      loss_problem(logits, target, weights, ignore_index, label_smoothing);
  check_targets(problem);
  const Gradients job{problem,
                      static_cast<const double*>(lse.const_data_ptr()),
                      lse.stride(0),
                      grad_loss.const_data_ptr(),
                      reduction == kNone ? grad_loss.stride(0) : 0,
                      reduction == kMean ? 1.0 / load(total_weight) : 1.0,
                      problem.smooth ? sum_of_weights(problem, wide(logits.scalar_type())) : 0.0,
                      out.mutable_data_ptr(),
                      out.stride(0),
                      out.stride(1)};
  const auto kernel = choose<Gradients>(logits.scalar_type(), backward_float, backward_double,
                                        backward_bf16, backward_half);
  torch::stable::parallel_for(0, problem.rows, share(problem),
                              [&](int64_t b, int64_t e) { kernel(job, b, e); });
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
  library.impl("cross_entropy", TORCH_BOX(&torchgraph::cross_entropy));
  library.impl("cross_entropy_backward", TORCH_BOX(&torchgraph::cross_entropy_backward<torchgraph::write_gradient>));
  library.impl("cross_entropy_backward_", TORCH_BOX(&torchgraph::cross_entropy_backward_<torchgraph::write_gradient>));
}
