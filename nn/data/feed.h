// Feed: batches made ahead of time on worker threads, in epochs, with a position that a file can keep. The base of
// Loader and Windows.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/push.h"

namespace sluice::nn {

/// for (const auto& [x, y, first] : loader) { ... }
struct Batch {
  NDArray x, y;
  bool first = false;  ///< of its epoch
};

/// A `for` loop goes through one epoch, numbered from 0; the next loop begins the next one, also where a loop was left
/// early. next() goes on without end. Batches are pushed and not waited for. Used by one thread.
class Feed {
 public:
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;
  virtual ~Feed() = default;

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    const Batch& operator*() const { return feed_->current_; }
    const Batch* operator->() const { return &feed_->current_; }
    Iterator& operator++() {
      done_ = feed_->epoch_ != epoch_;
      if (!done_) feed_->take();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& i, std::default_sentinel_t) { return i.done_; }

   private:
    friend class Feed;
    explicit Iterator(Feed* feed) : feed_(feed), epoch_(feed->epoch_), done_(feed->batches_ == 0) {
      if (!done_) feed_->take();
    }
    Feed* feed_;
    std::uint64_t epoch_;
    bool done_;
  };
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }
  /// The next batch; behind the last of an epoch, the first of the next one. Throws UsageError if there are none.
  const Batch& next();
  /// Batches of an epoch.
  std::int64_t size() const { return batches_; }

  /// Of the next batch: {"epoch", "batch"}. Batches that were made ahead do not count. From the start of an epoch, and
  /// from its middle, the batches that follow have the same bits as in the run that was not cut.
  std::map<std::string, std::int64_t> position() const;
  /// The next begin() or next() goes on there. Throws UsageError for other keys and numbers; then nothing was changed.
  void set_position(const std::map<std::string, std::int64_t>& position);

 protected:
  /// What an epoch's batches are made of; shared by the feed and the operations that make them.
  class Epoch {
   public:
    virtual ~Epoch() = default;
    virtual Spec x(std::int64_t batch) const = 0;
    virtual Spec y(std::int64_t batch) const = 0;
    /// The arrays that make() reads, as inputs 0, 1, ...; it writes x and y as outputs 0 and 1.
    virtual std::vector<NDArray> inputs() const = 0;
    virtual void make(ArrayContext& context, std::int64_t batch) const = 0;
  };
  Feed(std::int64_t batches, int prefetch, sluice::Place made_on, std::source_location where)
      : batches_(batches), prefetch_(prefetch), made_on_(made_on), where_(where) {}
  virtual std::shared_ptr<const Epoch> start(std::uint64_t epoch) const = 0;

 private:
  void go_to(std::uint64_t epoch, std::int64_t batch);
  /// Pushes batches of the present epoch, until there are enough ahead.
  void fill();
  /// Makes the next batch the current one.
  void take();

  std::int64_t batches_;
  int prefetch_;
  sluice::Place made_on_;
  std::source_location where_;
  std::uint64_t epoch_ = 0;  ///< of the next batch
  std::int64_t batch_ = 0;   ///< its number
  bool placed_ = false;      ///< set_position() said where the next loop begins
  Batch current_;
  std::shared_ptr<const Epoch> making_;  ///< the epoch of ahead_
  std::int64_t made_ = 0;                ///< its next batch to push
  std::deque<Batch> ahead_;
};

}  // namespace sluice::nn
