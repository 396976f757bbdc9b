// The arguments of an update op: taken off the stack, and checked before anything is written.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include "common/operands.h"
#include "common/versions.h"
#include "model_update/interpreter.h"
#include "model_update/overlap.h"
#include "model_update/rules.h"

namespace torchgraph {

// What torchgraph/passes/fusions/model_update/op.py says about a rule.
struct RuleInfo {
  const char* name;
  int numbers, flags, states;
  bool steps;
  unsigned optional;  // states that may be an empty list
};

template <template <class> class Rule>
constexpr RuleInfo info(const char* name, unsigned optional = 0) {
  using R = Rule<float>;
  return {name, R::kNumbers, R::kFlags, R::kStates, R::kSteps, optional};
}

struct UpdateArguments {
  RuleInfo rule;
  bool on_device;  // the overload that takes its numbers as tensors
  std::vector<Operand> params, grads, states[kMaxStates], steps, copies;
  std::vector<Operand> numbers;
  std::optional<Operand> l1, grad_scale, clip_coef, found_inf;
  Options options{};  // the numbers of the other overload; flags

  UpdateArguments(const RuleInfo& rule, bool on_device, StableIValue* stack)
      : rule(rule), on_device(on_device) {
    params = take_operands(*stack++);
    grads = take_operands(*stack++);
    for (int i = 0; i < rule.states; ++i) states[i] = take_operands(*stack++);
    if (rule.steps) steps = take_operands(*stack++);
    copies = take_operands(*stack++);
    options.grad_scale = options.clip_coef = 1;
    for (int i = 0; i < rule.numbers; ++i, ++stack) {
      if (on_device) {
        numbers.push_back(take_operand(*stack));
      } else {
        options.numbers[i] = torch::stable::detail::to<double>(*stack);
      }
    }
    for (int i = 0; i < rule.flags; ++i) options.flags[i] = torch::stable::detail::to<bool>(*stack++);
    options.maximize = torch::stable::detail::to<bool>(*stack++);
    if (on_device) {
      l1 = take_optional_operand(*stack++);
    } else {
      options.l1 = torch::stable::detail::to<double>(*stack++);
    }
    grad_scale = take_optional_operand(*stack++);
    clip_coef = take_optional_operand(*stack++);
    found_inf = take_optional_operand(*stack++);
  }

  ~UpdateArguments() {
    const InterpreterLock lock;
    for (auto* list : {&params, &grads, &states[0], &states[1], &states[2], &steps, &copies}) {
      list->clear();
    }
  }

  // The states whose lists are not empty, one bit each.
  unsigned given() const {
    unsigned bits = 0;
    for (int i = 0; i < rule.states; ++i) bits |= states[i].empty() ? 0u : 1u << i;
    return bits;
  }

  // Before the writing: a tensor that must not be written raises here.
  void raise_written() const {
    for (const auto* list : {&params, &states[0], &states[1], &states[2], &steps, &copies}) {
      for (const Operand& tensor : *list) raise_version(tensor.get());
    }
  }

  void check() const {
    same_count(grads, "grads", false);
    for (int i = 0; i < rule.states; ++i) same_count(states[i], "states", rule.optional >> i & 1u);
    if (rule.steps) same_count(steps, "steps", false);
    same_count(copies, "copies", true);
    for (const auto* one : {&l1, &grad_scale, &clip_coef, &found_inf}) {
      if (*one) check_scalar(**one, one == &l1);
    }
    for (const Operand& number : numbers) check_scalar(number, true);
    std::vector<Range> ranges;
    ranges.reserve(params.size() * (4 + rule.states));
    for (size_t i = 0; i < params.size(); ++i) check_tensors(i, ranges);
    for (const auto* one : {&l1, &grad_scale, &clip_coef, &found_inf}) {
      if (*one) add(ranges, **one, false);
    }
    for (const Operand& number : numbers) add(ranges, number, false);
    STD_TORCH_CHECK(!conflict(std::move(ranges)), "torchgraph::", rule.name,
                    ": a written tensor overlaps another tensor or itself.");
  }

 private:
  void same_count(const std::vector<Operand>& list, const char* what, bool optional) const {
    STD_TORCH_CHECK(list.size() == params.size() || (optional && list.empty()), "torchgraph::",
                    rule.name, ": ", params.size(), " params, ", list.size(), " ", what, ".");
  }

  void check_scalar(const Operand& scalar, bool number) const {
    STD_TORCH_CHECK(scalar.numel == 1 && scalar.is_floating &&
                        (!number || scalar.dtype == Dtype::kDouble) &&
                        (params.empty() || scalar.same_device(params[0])),
                    "torchgraph::", rule.name, ": a number must be one floating-point element",
                    number ? " of float64" : "", " on the parameters' device.");
  }

  void check_tensors(size_t i, std::vector<Range>& ranges) const {
    check_tensor(params[i], i, "params", true);
    check_tensor(grads[i], i, "grads", true);
    add(ranges, params[i], true);
    add(ranges, grads[i], false);
    for (int k = 0; k < rule.states; ++k) {
      if (states[k].empty()) continue;
      check_tensor(states[k][i], i, "states", false);
      add(ranges, states[k][i], true);
    }
    if (!copies.empty()) {
      check_tensor(copies[i], i, "copies", true);
      add(ranges, copies[i], true);
    }
    if (rule.steps) {
      const Operand& step = steps[i];
      const bool reachable = step.same_device(params[0]) || (step.on_cpu() && !on_device);
      STD_TORCH_CHECK(
          step.numel == 1 && step.is_floating && element_size(step.dtype) >= 4 && reachable,
          "torchgraph::", rule.name, ": steps[", i, "] must be one float32 or float64 number ",
          on_device ? "on the parameters' device." : "on the parameters' device or on the CPU.");
      add(ranges, step, true);
    }
  }

  void check_tensor(const Operand& tensor, size_t i, const char* list, bool any_dtype) const {
    STD_TORCH_CHECK(tensor.same_device(params[0]), "torchgraph::", rule.name, ": ", list, "[", i,
                    "] is on another device than params[0].");
    STD_TORCH_CHECK(tensor.same_shape(params[i]), "torchgraph::", rule.name, ": ", list, "[", i,
                    "] has not the shape of params[", i, "].");
    STD_TORCH_CHECK(tensor.is_floating && (any_dtype || tensor.dtype == params[i].dtype),
                    "torchgraph::", rule.name, ": ", list, "[", i, "] has a dtype that it cannot have.");
    STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data) % element_size(tensor.dtype) == 0,
                    "torchgraph::", rule.name, ": ", list, "[", i,
                    "] begins at an address where no element of its dtype may be.");
  }

  static void add(std::vector<Range>& ranges, const Operand& tensor, bool written) {
    if (tensor.numel == 0) return;
    const Extent place = extent(tensor);
    ranges.push_back({place.low, place.high, &tensor, written, place.dense});
  }
};

// What the rule needs and was not given; ``known`` are numbers that can be read here.
template <template <class> class Rule>
void check_states(const UpdateArguments& arguments, const Options& known) {
  const unsigned all = (1u << arguments.rule.states) - 1;
  const unsigned missing = Rule<float>::used(known, all) & ~arguments.given();
  STD_TORCH_CHECK(arguments.params.empty() || missing == 0, "torchgraph::", arguments.rule.name,
                  ": an option needs a state whose list is empty.");
}

}  // namespace torchgraph
