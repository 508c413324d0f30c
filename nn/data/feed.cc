#include "sluice/nn/data/feed.h"

#include <utility>

namespace sluice::nn {

void Feed::go_to(std::uint64_t epoch, std::int64_t batch) {
  epoch_ = epoch;
  batch_ = made_ = batch;
  ahead_.clear();
  current_ = {};
  making_ = nullptr;
  placed_ = false;
}

void Feed::fill() {
  if (!making_) making_ = start(epoch_);
  while (made_ < batches_ && ahead_.size() <= static_cast<std::size_t>(prefetch_)) {
    const Spec to_x = making_->x(made_), to_y = making_->y(made_);
    // A CPU's lane writes to host memory, of which other devices get copies.
    const NDArray x = sluice::detail::empty_pinned(to_x.shape, to_x.dtype, to_x.device);
    const NDArray y = sluice::detail::empty_pinned(to_y.shape, to_y.dtype, to_y.device);
    const std::vector<NDArray> inputs = making_->inputs();
    const NDArray outputs[] = {x, y};
    push_op([epoch = making_, batch = made_](ArrayContext& context) { epoch->make(context, batch); }, inputs, outputs,
            {.on = made_on_, .name = "load batch", .bytes = x.bytes() + y.bytes()}, where_);
    ahead_.push_back({x.to(to_x.device, where_), y.to(to_y.device, where_), made_ == 0});
    ++made_;
  }
}

void Feed::take() {
  fill();
  current_ = std::move(ahead_.front());
  ahead_.pop_front();
  placed_ = false;
  if (++batch_ < batches_) return fill();
  Batch last = std::move(current_);
  go_to(epoch_ + 1, 0);
  current_ = std::move(last);
}

Feed::Iterator Feed::begin() {
  if (batch_ != 0 && !placed_) go_to(epoch_ + 1, 0);  // a loop was left early
  return Iterator(this);
}

const Batch& Feed::next() {
  if (batches_ == 0) throw UsageError("[nn::Feed::next] " + sluice::to_string(where_) + ": an epoch has no batches");
  take();
  fill();
  return current_;
}

std::map<std::string, std::int64_t> Feed::position() const {
  return {{"epoch", static_cast<std::int64_t>(epoch_)}, {"batch", batch_}};
}

void Feed::set_position(const std::map<std::string, std::int64_t>& position) {
  const auto epoch = position.find("epoch"), batch = position.find("batch");
  if (position.size() != 2 || epoch == position.end() || batch == position.end() || epoch->second < 0 ||
      batch->second < 0 || (batch->second != 0 && batch->second >= batches_)) {
    std::string text;
    for (const auto& [key, value] : position) text += (text.empty() ? "" : ", ") + key + " " + std::to_string(value);
    throw UsageError("[nn::Feed::set_position] " + sluice::to_string(where_) + ": {" + text +
                     "}: an epoch and a batch below " + std::to_string(batches_) + " are wanted");
  }
  go_to(static_cast<std::uint64_t>(epoch->second), batch->second);
  placed_ = true;
}

}  // namespace sluice::nn
