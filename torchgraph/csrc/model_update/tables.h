// The tables of the update kernels, and the arguments of the ops put into them.
#pragma once

#include <algorithm>
#include <list>

#include "common/cuda.h"
#include "model_update/arguments.h"

namespace torchgraph {

// What a kernel may take as its parameter: tables go there, since a replayed graph would read later
// contents of a buffer.
constexpr size_t kMaxParameter = 32764;

// ``load`` and ``store`` of parameters and states, which are float64 exactly where M is double.
template <class M>
__device__ __forceinline__ void load_own(const void* base, Dtype dtype, int64_t at,
                                         M (&out)[kVector]) {
  if constexpr (sizeof(M) == 8) return load_as<M, double>(base, at, out);
  if (dtype == Dtype::kFloat) return load_as<M, float>(base, at, out);
  if (dtype == Dtype::kBFloat16) return load_as<M, BFloat16>(base, at, out);
  return load_as<M, Half>(base, at, out);
}

template <class M>
__device__ __forceinline__ void store_own(void* base, Dtype dtype, int64_t at,
                                          const M (&in)[kVector]) {
  if constexpr (sizeof(M) == 8) return store_as<M, double>(base, at, in);
  if (dtype == Dtype::kFloat) return store_as<M, float>(base, at, in);
  if (dtype == Dtype::kBFloat16) return store_as<M, BFloat16>(base, at, in);
  return store_as<M, Half>(base, at, in);
}

// As it would be read back.
template <class M>
__device__ __forceinline__ M rounded(M value, Dtype dtype) {
  if (dtype == Dtype::kBFloat16) {
    BFloat16 kept;
    narrow(value, kept);
    return widen(kept);
  }
  if (dtype == Dtype::kHalf) {
    Half kept;
    narrow(value, kept);
    return widen(kept);
  }
  return value;
}

struct UpdateRecord {
  void* param;
  const void* grad;
  void* states[kMaxStates];
  void* copy;
  const void* step;  // null: ``step_value``, read on the host
  double step_value;
  int64_t size;
  Dtype dtype, grad_dtype, copy_dtype, step_dtype;
  bool aligned;
};

// The numbers of a call: by value, or where they will be when the kernel runs.
struct UpdateNumbers {
  Options options;
  const double* numbers[kMaxNumbers];  // null: in ``options``
  const double* l1;
  const void *grad_scale, *clip_coef, *found_inf;
  Dtype grad_scale_dtype, clip_coef_dtype, found_inf_dtype;
  unsigned given;  // states whose lists are not empty
};

constexpr int kRecords = 320;

// The records of a launch. Block b works on chunk b: of the record that ``ends`` puts it in.
struct UpdateTable {
  UpdateRecord records[kRecords];
  int32_t ends[kRecords];  // chunks of all records up to and with this one
  int32_t count;
  UpdateNumbers numbers;

  // Where a block's chunk is, for the threads of the block.
  __device__ __forceinline__ int find(int32_t chunk) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (chunk < ends[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  __device__ __forceinline__ int64_t begin(int record, int32_t chunk) const {
    return int64_t(chunk - (record == 0 ? 0 : ends[record - 1])) * kChunk;
  }
};
static_assert(sizeof(UpdateTable) <= kMaxParameter);

__device__ __forceinline__ bool skipped(const UpdateNumbers& n) {
  return n.found_inf != nullptr && load_one<double>(n.found_inf, n.found_inf_dtype, 0) != 0;
}

__device__ __forceinline__ Options read_options(const UpdateNumbers& n) {
  Options options = n.options;
#pragma unroll
  for (int i = 0; i < kMaxNumbers; ++i) {
    if (n.numbers[i] != nullptr) options.numbers[i] = *n.numbers[i];
  }
  if (n.l1 != nullptr) options.l1 = *n.l1;
  if (n.grad_scale != nullptr) {
    options.grad_scale = load_one<double>(n.grad_scale, n.grad_scale_dtype, 0);
  }
  if (n.clip_coef != nullptr) {
    options.clip_coef = load_one<double>(n.clip_coef, n.clip_coef_dtype, 0);
  }
  return options;
}

// The step that the update makes.
__device__ __forceinline__ double read_step(const UpdateRecord& record) {
  return record.step == nullptr ? record.step_value
                                : load_one<double>(record.step, record.step_dtype, 0) + 1;
}

// The arguments as records, apart for each arithmetic type, alive until the kernels are launched.
class UpdateRecords {
 public:
  explicit UpdateRecords(const UpdateArguments& arguments) : arguments_(arguments) {
    for (size_t i = 0; i < arguments.params.size(); ++i) {
      if (arguments.params[i].numel > 0) add(i);
    }
  }

  template <class M>
  const std::vector<UpdateRecord>& of() const {
    return sizeof(M) == 8 ? wide_ : narrow_;
  }

  UpdateNumbers numbers() const {
    UpdateNumbers n{};
    n.options = arguments_.options;
    n.given = arguments_.given();
    for (size_t i = 0; i < arguments_.numbers.size(); ++i) {
      n.numbers[i] = static_cast<const double*>(arguments_.numbers[i].data);
    }
    if (arguments_.l1) n.l1 = static_cast<const double*>(arguments_.l1->data);
    point(arguments_.grad_scale, n.grad_scale, n.grad_scale_dtype);
    point(arguments_.clip_coef, n.clip_coef, n.clip_coef_dtype);
    point(arguments_.found_inf, n.found_inf, n.found_inf_dtype);
    return n;
  }

  void write_back() const {
    for (const Adjacent& tensor : tensors_) tensor.write_back();
  }

 private:
  static void point(const std::optional<Operand>& number, const void*& data, Dtype& dtype) {
    if (!number) return;
    data = number->data;
    dtype = number->dtype;
  }

  const Adjacent& adjacent(const Operand& tensor, const Operand& param, bool written) {
    return tensors_.emplace_back(tensor, param, written);
  }

  void add(size_t i) {
    const Operand& param = arguments_.params[i];
    UpdateRecord r{};
    r.size = param.numel;
    r.dtype = param.dtype;
    r.grad_dtype = arguments_.grads[i].dtype;
    r.param = adjacent(param, param, true).data();
    r.grad = adjacent(arguments_.grads[i], param, false).const_data();
    r.aligned = aligned(r.param, r.dtype) && aligned(r.grad, r.grad_dtype);
    for (int k = 0; k < arguments_.rule.states; ++k) {
      if (arguments_.states[k].empty()) continue;
      r.states[k] = adjacent(arguments_.states[k][i], param, true).data();
      r.aligned = r.aligned && aligned(r.states[k], r.dtype);
    }
    if (!arguments_.copies.empty()) {
      r.copy_dtype = arguments_.copies[i].dtype;
      r.copy = adjacent(arguments_.copies[i], param, true).data();
      r.aligned = r.aligned && aligned(r.copy, r.copy_dtype);
    }
    if (arguments_.rule.steps) {
      const Operand& step = arguments_.steps[i];
      r.step_dtype = step.dtype;
      if (step.on_cpu()) {
        r.step_value = (step.dtype == Dtype::kDouble ? *static_cast<const double*>(step.data)
                                                     : *static_cast<const float*>(step.data)) + 1;
      } else {
        r.step = step.data;
      }
    }
    (param.dtype == Dtype::kDouble ? wide_ : narrow_).push_back(r);
  }

  const UpdateArguments& arguments_;
  std::list<Adjacent> tensors_;
  std::vector<UpdateRecord> narrow_, wide_;
};

// Launches kernel(table) for all records of one arithmetic type.
template <class F>
void launch_tables(const std::vector<UpdateRecord>& records, const UpdateNumbers& numbers,
                   const F& launch) {
  UpdateTable table;
  table.numbers = numbers;
  for (size_t first = 0; first < records.size(); first += kRecords) {
    table.count = static_cast<int32_t>(std::min<size_t>(kRecords, records.size() - first));
    int32_t chunks = 0;
    for (int i = 0; i < table.count; ++i) {
      table.records[i] = records[first + i];
      table.ends[i] = chunks += chunks_of(records[first + i].size);
    }
    launch(table, chunks);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

// Adds 1 to the steps, unless the update was skipped.
void count_steps(const UpdateArguments& arguments, const UpdateNumbers& numbers,
                 cudaStream_t stream);

// True for a little-endian floating-point number in the host's memory that is not 0, of any sign.
inline bool is_not_zero(const unsigned char* bytes, int64_t size) {
  if ((bytes[size - 1] & 0x7f) != 0) return true;  // but for the sign
  return std::any_of(bytes, bytes + size - 1, [](unsigned char byte) { return byte != 0; });
}

// Steps in the host's memory are counted by the host, now: so it waits for ``found_inf`` first, as
// GradScaler does. True when that skips the update. A capture cannot wait, and is refused.
inline bool skipped_by_host(const UpdateArguments& arguments, cudaStream_t stream) {
  const bool any = std::any_of(arguments.steps.begin(), arguments.steps.end(),
                               [](const Operand& step) { return step.on_cpu(); });
  if (!any) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  STD_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  STD_TORCH_CHECK(status == cudaStreamCaptureStatusNone, "torchgraph::", arguments.rule.name,
                  ": in a CUDA Graph the steps must be on the parameters' device.");
  if (!arguments.found_inf) return false;
  unsigned char bytes[8];
  const int64_t size = element_size(arguments.found_inf->dtype);
  STD_CUDA_CHECK(
      cudaMemcpyAsync(bytes, arguments.found_inf->data, size, cudaMemcpyDeviceToHost, stream));
  STD_CUDA_CHECK(cudaStreamSynchronize(stream));
  return is_not_zero(bytes, size);
}

// Checks, then runs launch<M>(records, numbers, stream) for both arithmetic types.
template <class F>
void run_update(const RuleInfo& rule, bool on_device, StableIValue* stack, const F& launch) {
  const UpdateArguments arguments(rule, on_device, stack);
  arguments.check();
  launch.check(arguments);
  if (arguments.params.empty()) return;
  const torch::stable::accelerator::DeviceGuard guard(arguments.params[0].device_index);
  const cudaStream_t stream = stream_of(arguments.params[0]);
  if (skipped_by_host(arguments, stream)) return;
  arguments.raise_written();
  const NoGrad no_grad;
  UpdateRecords records(arguments);
  const UpdateNumbers numbers = records.numbers();
  launch.template run<float>(records.of<float>(), numbers, arguments.params[0], stream);
  launch.template run<double>(records.of<double>(), numbers, arguments.params[0], stream);
  records.write_back();
  count_steps(arguments, numbers, stream);
}

}  // namespace torchgraph
