// The update ops on the CPU: one pass over the memory of all tensors, shared out by elements.
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "common/numbers.h"
#include "common/stream.h"
#include "model_update/arguments.h"
#include "model_update/loops.h"

namespace torchgraph {
namespace {

constexpr int64_t kStretch = 1024;    // elements that are converted at a time; five fit into L1
constexpr int64_t kPerThread = 32768;  // as ATen shares out elementwise work
constexpr int64_t kTorchVector = 32;   // bytes: the width that torch's fused kernels use

Options read_options(const UpdateArguments& arguments) {
  Options options = arguments.options;
  for (size_t i = 0; i < arguments.numbers.size(); ++i) {
    options.numbers[i] = read_number(arguments.numbers[i]);
  }
  if (arguments.l1) options.l1 = read_number(*arguments.l1);
  if (arguments.grad_scale) options.grad_scale = read_number(*arguments.grad_scale);
  if (arguments.clip_coef) options.clip_coef = read_number(*arguments.clip_coef);
  return options;
}

// A parameter with all that belongs to it.
struct Member {
  Stream param, grad, states[kMaxStates], copy;
  int64_t size;
  int64_t tail;  // where torch's kernels stop to use vectors
  double step;
  bool wide;  // float64
};

void describe(Member& m, const UpdateArguments& arguments, size_t i, unsigned used) {
  const Operand& param = arguments.params[i];
  m.size = param.numel;
  m.wide = param.dtype == Dtype::kDouble;
  m.param = Stream(param, param, true);
  m.grad = Stream(arguments.grads[i], param, false);
  for (int k = 0; k < kMaxStates; ++k) {
    if (used >> k & 1u) m.states[k] = Stream(arguments.states[k][i], param, true);
  }
  if (!arguments.copies.empty()) m.copy = Stream(arguments.copies[i], param, true);
  m.tail = m.size - m.size % (kTorchVector / element_size(param.dtype));
  m.step = arguments.rule.steps ? read_number(arguments.steps[i]) + 1 : 0;
}

// The streams of a member over one stretch: in place where they lie side by side as M, else copied
// into buffers and back.
template <class M>
class Staged {
 public:
  Staged(const Member& member, int64_t begin, int64_t size, M (*buffers)[kStretch])
      : member_(member), begin_(begin), size_(size), buffers_(buffers) {
    at.size = size;
    at.param = stage(member.param, 0);
    at.grad = stage(member.grad, 1);
    for (int k = 0; k < kMaxStates; ++k) at.state[k] = stage(member.states[k], 2 + k);
  }

  void store_states() const {
    for (int k = 0; k < kMaxStates; ++k) put_back(member_.states[k], at.state[k], 2 + k);
  }

  void store_param() const {
    put_back(member_.param, at.param, 0);
    if (member_.copy.empty()) return;
    // Of the parameter as it is kept.
    if (at.param == buffers_[0]) member_.param.load(begin_, size_, buffers_[0]);
    member_.copy.store(begin_, size_, at.param);
  }

  // States as they are kept: a second pass will read those.
  void reload_states() {
    for (int k = 0; k < kMaxStates; ++k) at.state[k] = stage(member_.states[k], 2 + k);
  }

  Stretch<M> at{};

 private:
  M* stage(const Stream& stream, int slot) {
    if (stream.empty()) return nullptr;
    if (M* direct = stream.template direct<M>(begin_)) return direct;
    stream.load(begin_, size_, buffers_[slot]);
    return buffers_[slot];
  }

  void put_back(const Stream& stream, const M* from, int slot) const {
    if (from == buffers_[slot]) stream.store(begin_, size_, from);
  }

  const Member& member_;
  int64_t begin_, size_;
  M (*buffers_)[kStretch];
};

template <class M>
Stretch<M> part(Stretch<M> at, int64_t begin, int64_t end) {
  at.param += begin;
  at.grad += begin;
  for (M*& state : at.state) state = state == nullptr ? nullptr : state + begin;
  at.size = end - begin;
  return at;
}

// A rule, made anew when the step is another one: that takes powers.
template <class Rule>
class Made {
 public:
  explicit Made(const Options& options) : options_(options), rule_(options, 1) {}

  const Rule& at(double step) {
    if (step != step_) rule_ = Rule(options_, step_ = step);
    return rule_;
  }

 private:
  const Options& options_;
  double step_ = 1;
  Rule rule_;
};

template <class M, class Rule>
void update(const Member& member, int64_t begin, int64_t end, const Options& options,
            const Rule& rule, unsigned used) {
  alignas(64) M buffers[2 + kMaxStates][kStretch];
  const Gradient<M> gradient(options);
  const Preparation preparation = options.preparation();
  for (; begin < end; begin += kStretch) {
    const int64_t size = std::min(kStretch, end - begin);
    Staged<M> staged(member, begin, size, buffers);
    const int64_t vectors = std::clamp<int64_t>(member.tail - begin, 0, size);
    advance(rule, gradient, part(staged.at, 0, vectors), used, preparation, false);
    if (vectors < size) {
      advance(rule, gradient, part(staged.at, vectors, size), used, preparation, true);
    }
    staged.store_states();
    staged.store_param();
  }
}

// Calls start()(i, begin, end) over all elements of all members, ``start`` once per thread.
template <class F>
void share_out(const std::vector<Member>& members, const F& start) {
  std::vector<int64_t> ends;
  ends.reserve(members.size());
  int64_t total = 0;
  for (const Member& member : members) ends.push_back(total += member.size);
  torch::stable::parallel_for(0, total, kPerThread, [&](int64_t begin, int64_t end) {
    auto work = start();
    size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
    for (; begin < end; ++i) {
      const int64_t first = ends[i] - members[i].size, stop = std::min(end, ends[i]);
      if (begin < stop) work(i, begin - first, stop - first);
      begin = stop;
    }
  });
}

template <template <class> class Rule>
void update_all(const std::vector<Member>& members, const Options& options, unsigned used) {
  share_out(members, [&] {
    return [&, narrow = Made<Rule<float>>(options), wide = Made<Rule<double>>(options)](
               size_t i, int64_t begin, int64_t end) mutable {
      const Member& member = members[i];
      if (member.wide) {
        update<double>(member, begin, end, options, wide.at(member.step), used);
      } else {
        update<float>(member, begin, end, options, narrow.at(member.step), used);
      }
    };
  });
}

template <class M>
Lengths lamb_moments(const Member& member, int64_t begin, int64_t end, const Options& options) {
  alignas(64) M buffers[2 + kMaxStates][kStretch];
  Staged<M> staged(member, begin, end - begin, buffers);
  const Lamb<M> rule(options, member.step);
  moments(rule, Gradient<M>(options), staged.at);
  staged.store_states();
  staged.reload_states();
  return lengths(rule, staged.at);
}

template <class M>
void lamb_apply(const Member& member, int64_t begin, int64_t end, const Options& options,
                const Lengths& sums) {
  alignas(64) M buffers[2 + kMaxStates][kStretch];
  const Lamb<M> rule(options, member.step);
  for (; begin < end; begin += kStretch) {
    Staged<M> staged(member, begin, std::min(kStretch, end - begin), buffers);
    apply(rule, rule.ratio(sums.size, sums.length), staged.at);
    staged.store_param();
  }
}

// Lengths are summed up by stretches, whatever the number of threads: the result does not depend on it.
template <>
void update_all<Lamb>(const std::vector<Member>& members, const Options& options, unsigned) {
  std::vector<std::pair<size_t, int64_t>> stretches;
  for (size_t i = 0; i < members.size(); ++i) {
    for (int64_t begin = 0; begin < members[i].size; begin += kStretch) stretches.emplace_back(i, begin);
  }
  std::vector<Lengths> parts(stretches.size()), sums(members.size(), Lengths{0, 0});
  const auto count = static_cast<int64_t>(stretches.size());
  torch::stable::parallel_for(0, count, kPerThread / kStretch, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; ++at) {
      const auto [i, begin] = stretches[at];
      const int64_t end = std::min(begin + kStretch, members[i].size);
      parts[at] = members[i].wide ? lamb_moments<double>(members[i], begin, end, options)
                                  : lamb_moments<float>(members[i], begin, end, options);
    }
  });
  for (size_t at = 0; at < stretches.size(); ++at) {
    Lengths& sum = sums[stretches[at].first];
    sum.size += parts[at].size;
    sum.length += parts[at].length;
  }
  share_out(members, [&] {
    return [&](size_t i, int64_t begin, int64_t end) {
      if (members[i].wide) {
        lamb_apply<double>(members[i], begin, end, options, sums[i]);
      } else {
        lamb_apply<float>(members[i], begin, end, options, sums[i]);
      }
    };
  });
}

template <template <class> class Rule>
void run(const RuleInfo& rule, bool on_device, StableIValue* stack) {
  const UpdateArguments arguments(rule, on_device, stack);
  arguments.check();
  const Options options = read_options(arguments);
  check_states<Rule>(arguments, options);
  arguments.raise_written();
  if (arguments.found_inf && read_number(*arguments.found_inf) != 0) return;
  const unsigned used = Rule<float>::used(options, arguments.given());
  std::vector<Member> members;
  members.reserve(arguments.params.size());
  for (size_t i = 0; i < arguments.params.size(); ++i) {
    if (arguments.params[i].numel > 0) describe(members.emplace_back(), arguments, i, used);
  }
  update_all<Rule>(members, options, used);
  for (const Operand& step : arguments.steps) write_number(step, read_number(step) + 1);
}

#define TG_UPDATE(Rule, name, optional)                                      \
  void name##_update(StableIValue* stack, uint64_t, uint64_t) {              \
    run<Rule>(info<Rule>(#name "_update_", optional), false, stack);         \
  }                                                                          \
  void name##_update_device(StableIValue* stack, uint64_t, uint64_t) {       \
    run<Rule>(info<Rule>(#name "_update_.device", optional), true, stack);   \
  }

TG_UPDATE(Sgd, sgd, 1u)
TG_UPDATE(Adam, adam, 4u)
TG_UPDATE(RmsProp, rmsprop, 6u)
TG_UPDATE(Adagrad, adagrad, 0u)
TG_UPDATE(Adadelta, adadelta, 0u)
TG_UPDATE(Lamb, lamb, 0u)
TG_UPDATE(Lion, lion, 0u)

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
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
  library.impl("lamb_update_", lamb_update);
  library.impl("lamb_update_.device", lamb_update_device);
  library.impl("lion_update_", lion_update);
  library.impl("lion_update_.device", lion_update_device);
}
