// DataLoader: batches of a data set in memory, made ahead of time on the engine's I/O lane.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <source_location>
#include <vector>

#include "sluice/ndarray/formats/host_tensor.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/tensor_view.h"
#include "sluice/resources/random.h"

namespace sluice {

/// Makes one sample: reads `sample` (the data's dtype and sample shape) and writes all of `out` (the batch's), both
/// row-major. `key` belongs to (seed, epoch, sample), for random changes that any machine and thread can repeat. Called
/// on a thread of the I/O lane; several batches may be made at once.
using SampleTransform = std::function<void(const TensorView& sample, const TensorView& out, const RandomKey& key)>;

struct DataLoaderOptions {
  std::int64_t batch = 64;
  bool shuffle = false;
  std::uint64_t seed = 0;    ///< with the epoch's number it decides the order, the same on every machine
  int prefetch = 2;          ///< batches made ahead of the one in use; changes no value
  bool drop_last = false;    ///< leave out the last batch where it is not full
  Dims sample_shape = {};    ///< of x's samples, e.g. {1, 28, 28}; empty: as in the data
  DType dtype = DType::f32;  ///< of x: f32, f64, or the data's own integers, which are copied as they are
  double scale = 1.0 / 255;  ///< x = (element * scale - mean) / deviation, in double and rounded once
  double mean = 0;
  double deviation = 1;
  SampleTransform transform = nullptr;  ///< instead of scale, mean and deviation
  Device device = cpu(0);               ///< where x lives
  Device label_device = cpu(0);         ///< where y lives
};

/// x: (batch, sample_shape...); y: (batch, ...) in the labels' dtype.
struct Batch {
  NDArray x;
  NDArray y;
};

/// Goes through a data set once for each `for` loop:
///
///   DataLoader loader(images, labels, {.batch = 64, .shuffle = true, .seed = 1});
///   for (auto [x, y] : loader) { ... }
///
/// Each begin() starts an epoch, numbered from 0; with `shuffle` each epoch has its own order. Batches are pushed and
/// not waited for; an exception of a transform comes out where the program waits for x. The data must be in host
/// memory. Used by one thread.
class DataLoader {
  struct Epoch;

 public:
  /// Throws ArrayError: axis 0 of data and labels differ, an option out of range, a sample shape of another count.
  DataLoader(const NDArray& data, const NDArray& labels, DataLoaderOptions options = {},
             std::source_location where = std::source_location::current());
  /// Takes host tensors (load_fashion_mnist) without copying them, for the thread's default engine.
  DataLoader(HostTensor data, HostTensor labels, DataLoaderOptions options = {},
             std::source_location where = std::source_location::current());

  /// An epoch under way. Move-only; the loader's data is kept alive by it.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    const Batch& operator*() const { return ahead_.front(); }
    const Batch* operator->() const { return &ahead_.front(); }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& i, std::default_sentinel_t) { return i.ahead_.empty(); }

   private:
    friend class DataLoader;
    Iterator(std::shared_ptr<const Epoch> epoch, std::int64_t first);
    void fill();
    std::shared_ptr<const Epoch> epoch_;
    std::deque<Batch> ahead_;  ///< the batch in use, then those made ahead
    std::int64_t next_ = 0;    ///< number of the next batch to push
  };

  /// Starts the next epoch and pushes its first batches.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// The number of the epoch that the next begin() starts.
  std::uint64_t epoch() const { return epoch_; }
  /// The next begin() starts this epoch at this batch (to go on from a checkpoint).
  void set_epoch(std::uint64_t epoch, std::int64_t first_batch = 0);

  /// Batches of an epoch.
  std::int64_t size() const;
  std::int64_t samples() const { return data_.shape()[0]; }
  /// The numbers of the samples, in the order of the given epoch.
  std::vector<std::int64_t> order(std::uint64_t epoch) const;
  const DataLoaderOptions& options() const { return *options_; }

 private:
  void check(std::source_location where);

  NDArray data_;
  NDArray labels_;
  std::shared_ptr<DataLoaderOptions> options_;
  std::source_location where_;
  std::uint64_t epoch_ = 0;
  std::int64_t first_batch_ = 0;
};

}  // namespace sluice
