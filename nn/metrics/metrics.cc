#include "sluice/nn/metrics/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/push.h"
#include "sluice/operators/operators.h"

namespace sluice::nn {

/// The operations of add() only read, so that a lane may run them in another order than they were pushed in.
struct Mean::Latest {
  std::mutex mutex;
  std::int64_t add = 0;  ///< the value is of the add of this number
  std::optional<double> value;

  void set(std::int64_t number, double mean) {
    const std::lock_guard lock(mutex);
    if (number < add) return;
    add = number;
    value = mean;
  }
};

Mean::Mean() : latest_(std::make_shared<Latest>()) {}

void Mean::add(const NDArray& value, double weight, Where where) {
  const sluice::detail::Called called("nn::Mean::add", where);
  value.checked("nn::Mean::add", where);
  if (value.count() != 1) {
    throw ArrayError("nn::Mean::add", where, "a value " + to_string(value.shape()) + ", not of one element");
  }
  const NoGrad off;
  const DeviceScope scope(value.device());
  const NDArray term = value.reshape({}).to(DType::f64) * weight;
  total_ = total_.defined() ? total_.to(value.device()) + term : term;
  weight_ += weight;
  const NDArray here = total_.to(cpu(0));
  push_op([latest = latest_, number = ++adds_, plain = plain_,
           all = weight_](ArrayContext& c) { latest->set(number, (*c.input(0).as<double>() + plain) / all); },
          {here}, {}, {.on = io(), .name = "latest"}, where);
}

void Mean::add(double value, double weight) {
  plain_ += value * weight;
  weight_ += weight;
  if (!total_.defined()) latest_->set(++adds_, plain_ / weight_);
}

double Mean::value(Where where) const {
  if (weight_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return ((total_.defined() ? total_.item<double>(where) : 0) + plain_) / weight_;
}

std::optional<double> Mean::latest() const {
  const std::lock_guard lock(latest_->mutex);
  return latest_->value;
}

void Mean::reset() { *this = Mean(); }

void Accuracy::add(const NDArray& logits, const NDArray& labels, Where where) {
  const sluice::detail::Called called("nn::Accuracy::add", where);
  const NoGrad off;
  const NDArray right = argmax(logits, -1) == labels.to(DType::i64);
  mean_.add(mean(right.to(DType::f64)), static_cast<double>(labels.count()), where);
}

TopK::TopK(std::int64_t k) : k_(k) {
  if (k < 1) throw UsageError("[nn::TopK] k is " + std::to_string(k));
}

void TopK::add(const NDArray& logits, const NDArray& labels, Where where) {
  const sluice::detail::Called called("nn::TopK::add", where);
  logits.checked("nn::TopK::add", where);
  const NoGrad off;
  const NDArray places = topk(logits, std::min(k_, logits.size(-1, where)), -1).indices;
  const NDArray right = any(places == labels.to(DType::i64).unsqueeze(-1), {-1});
  mean_.add(mean(right.to(DType::f64)), static_cast<double>(labels.count()), where);
}

double Perplexity::value(Where where) const { return std::exp(mean_.value(where)); }

std::optional<double> Perplexity::latest() const {
  const std::optional<double> mean = mean_.latest();
  return mean ? std::optional(std::exp(*mean)) : std::nullopt;
}

}  // namespace sluice::nn
