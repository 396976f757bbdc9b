// An optimizer rule over a stretch of elements that lie side by side: compiled as vector code.
#pragma once

#include "model_update/rules.h"

namespace torchgraph {

template <class M>
struct Stretch {
  M* param;
  const M* grad;
  M* state[kMaxStates];  // null where the rule uses none
  int64_t size;
};

// ``used``: which states there are. ``tail``: these are the last elements of a tensor.
#define TG_ADVANCE(Rule, M)                                                            \
  void advance(const Rule<M>& rule, const Gradient<M>& gradient, const Stretch<M>& at, \
               unsigned used, Preparation preparation, bool tail)

TG_ADVANCE(Sgd, float);
TG_ADVANCE(Sgd, double);
TG_ADVANCE(Adam, float);
TG_ADVANCE(Adam, double);
TG_ADVANCE(RmsProp, float);
TG_ADVANCE(RmsProp, double);
TG_ADVANCE(Adagrad, float);
TG_ADVANCE(Adagrad, double);
TG_ADVANCE(Adadelta, float);
TG_ADVANCE(Adadelta, double);
TG_ADVANCE(Lion, float);
TG_ADVANCE(Lion, double);

// LAMB's first pass, and what it leads to.
void moments(const Lamb<float>& rule, const Gradient<float>& gradient, const Stretch<float>& at);
void moments(const Lamb<double>& rule, const Gradient<double>& gradient, const Stretch<double>& at);

struct Lengths {
  double size, length;  // sums of squares: of the parameter, of its change
};
Lengths lengths(const Lamb<float>& rule, const Stretch<float>& at);
Lengths lengths(const Lamb<double>& rule, const Stretch<double>& at);

void apply(const Lamb<float>& rule, float ratio, const Stretch<float>& at);
void apply(const Lamb<double>& rule, double ratio, const Stretch<double>& at);

}  // namespace torchgraph
