#include "sluice/nn/data_loader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "sluice/ndarray/push.h"

namespace sluice {
namespace {

/// The loader's random streams: the order of an epoch, and the keys that transforms get.
constexpr std::uint64_t kOrderStream = 0x6f72646572;
constexpr std::uint64_t kTransformStream = 0x7472616e73;

NDArray adopt(HostTensor tensor) {
  auto owner = std::make_shared<HostTensor>(std::move(tensor));
  return detail::adopt_memory(owner->bytes.data(), owner, owner->shape, owner->dtype, cpu(0));
}

/// Shape with axis 0 replaced by `rows`.
Dims with_rows(std::int64_t rows, const Dims& sample) {
  Dims shape{rows};
  for (std::int64_t size : sample) shape.push_back(size);
  return shape;
}

Dims without_rows(const Dims& shape) { return Dims(std::span(shape.begin() + 1, shape.end())); }

/// Copies rows of the data as they are.
void gather(const TensorView& data, std::span<const std::int64_t> rows, const TensorView& out) {
  const std::size_t bytes = static_cast<std::size_t>(without_rows(data.shape).count()) * size_of(data.dtype);
  std::byte* to = out.data;
  for (std::int64_t row : rows) {
    std::memcpy(to, data.data + static_cast<std::size_t>(row) * bytes, bytes);
    to += bytes;
  }
}

template <class To, class From>
void normalise_as(const TensorView& data, std::span<const std::int64_t> rows, const TensorView& out,
                  const DataLoaderOptions& o) {
  const auto value = [&](From element) {
    return static_cast<To>((static_cast<double>(element) * o.scale - o.mean) / o.deviation);
  };
  const std::int64_t count = without_rows(data.shape).count();
  To* to = out.as<To>();
  if constexpr (sizeof(From) == 1) {  // 256 values: a table
    std::array<To, 256> table;
    for (int i = 0; i < 256; ++i) table[static_cast<std::size_t>(i)] = value(static_cast<From>(i));
    for (std::int64_t row : rows) {
      const auto* from = data.as<std::uint8_t>() + row * count;
      for (std::int64_t i = 0; i < count; ++i) *to++ = table[from[i]];
    }
  } else {
    for (std::int64_t row : rows) {
      const From* from = data.as<From>() + row * count;
      for (std::int64_t i = 0; i < count; ++i) *to++ = value(from[i]);
    }
  }
}

template <class To>
void normalise_to(const TensorView& data, std::span<const std::int64_t> rows, const TensorView& out,
                  const DataLoaderOptions& options) {
  switch (data.dtype) {
    case DType::u8:
      return normalise_as<To, std::uint8_t>(data, rows, out, options);
    case DType::i8:
      return normalise_as<To, std::int8_t>(data, rows, out, options);
    case DType::i32:
      return normalise_as<To, std::int32_t>(data, rows, out, options);
    case DType::i64:
      return normalise_as<To, std::int64_t>(data, rows, out, options);
    case DType::f32:
      return normalise_as<To, float>(data, rows, out, options);
    default:
      return normalise_as<To, double>(data, rows, out, options);
  }
}

bool convertible(DType dtype) {
  return dtype == DType::u8 || dtype == DType::i8 || dtype == DType::i32 || dtype == DType::i64 ||
         dtype == DType::f32 || dtype == DType::f64;
}

}  // namespace

/// One pass, shared by its iterator and the operations that make its batches.
struct DataLoader::Epoch {
  NDArray data, labels;
  std::shared_ptr<const DataLoaderOptions> options;
  std::uint64_t number = 0;
  std::vector<std::int64_t> order;
  std::int64_t batches = 0;
  std::source_location where;

  Dims sample_shape() const {
    return options->sample_shape.empty() ? without_rows(data.shape()) : options->sample_shape;
  }
  std::span<const std::int64_t> rows(std::int64_t batch) const {
    const std::int64_t begin = batch * options->batch;
    const std::int64_t n = std::min(options->batch, static_cast<std::int64_t>(order.size()) - begin);
    return std::span(order).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
  }
  void make(ArrayContext& context, std::int64_t batch) const;
};

/// The body of a batch's operation.
void DataLoader::Epoch::make(ArrayContext& context, std::int64_t batch) const {
  const TensorView &in = context.input(0), &out = context.output(0);
  gather(context.input(1), rows(batch), context.output(1));
  if (options->transform) {
    const Dims in_shape = without_rows(in.shape), out_shape = without_rows(out.shape);
    const std::int64_t in_bytes = in_shape.count() * static_cast<std::int64_t>(size_of(in.dtype));
    const std::int64_t out_bytes = out_shape.count() * static_cast<std::int64_t>(size_of(out.dtype));
    const RandomStream stream = RandomStream(options->seed, kTransformStream).derive(number);
    std::byte* to = out.data;
    for (std::int64_t row : rows(batch)) {
      RandomKey key = stream.state();
      key.draw = static_cast<std::uint64_t>(row);
      options->transform({in.data + row * in_bytes, in.dtype, in_shape, row_major(in_shape)},
                         {to, out.dtype, out_shape, row_major(out_shape)}, key);
      to += out_bytes;
    }
  } else if (in.dtype == out.dtype && options->scale == 1 && options->mean == 0 && options->deviation == 1) {
    gather(in, rows(batch), out);
  } else if (out.dtype == DType::f64) {
    normalise_to<double>(in, rows(batch), out, *options);
  } else {
    normalise_to<float>(in, rows(batch), out, *options);
  }
}

DataLoader::DataLoader(const NDArray& data, const NDArray& labels, DataLoaderOptions options,
                       std::source_location where)
    : data_(data), labels_(labels), options_(std::make_shared<DataLoaderOptions>(std::move(options))), where_(where) {
  check(where);
}

DataLoader::DataLoader(HostTensor data, HostTensor labels, DataLoaderOptions options, std::source_location where)
    : DataLoader(adopt(std::move(data)), adopt(std::move(labels)), std::move(options), where) {}

void DataLoader::check(std::source_location where) {
  const DataLoaderOptions& o = *options_;
  const auto require = [&](bool fine, const std::string& message) {
    if (!fine) throw ArrayError("DataLoader", where, message);
  };
  data_.checked("DataLoader", where);
  labels_.checked("DataLoader", where);
  require(data_.rank() >= 1 && labels_.rank() >= 1 && data_.shape()[0] == labels_.shape()[0],
          to_string(data_.shape()) + " and labels " + to_string(labels_.shape()) + ": axis 0 differs");
  require(data_.device().kind == DeviceKind::cpu && labels_.device().kind == DeviceKind::cpu,
          "the data is on " + sluice::to_string(data_.device()) + ", the labels on " +
              sluice::to_string(labels_.device()) + ": both must be in host memory");
  require(o.batch >= 1, "batch " + std::to_string(o.batch) + ": must be at least 1");
  require(o.prefetch >= 0, "prefetch " + std::to_string(o.prefetch) + ": must not be negative");
  const Dims sample = without_rows(data_.shape());
  check_shape("DataLoader", o.sample_shape, o.dtype, where);
  require(o.sample_shape.empty() || o.sample_shape.count() == sample.count(),
          "sample_shape " + to_string(o.sample_shape) + " for samples of " + to_string(sample));
  require(o.sample_shape.rank() < kMaxRank,
          "sample_shape " + to_string(o.sample_shape) + ": leaves no axis for the batch");
  if (o.transform) return;
  // Elements that are copied are not normalised: the default scale then stands for no scale.
  if (!is_floating(o.dtype) && o.dtype == data_.dtype()) {
    options_->scale = options_->deviation = 1;
    options_->mean = 0;
    return;
  }
  require((o.dtype == DType::f32 || o.dtype == DType::f64) && convertible(data_.dtype()),
          std::string(name_of(data_.dtype())) + " to " + std::string(name_of(o.dtype)) + ": wants a transform");
  require(std::isfinite(o.scale) && std::isfinite(o.mean) && std::isfinite(o.deviation) && o.deviation != 0,
          "scale, mean and deviation must be finite, and the deviation not 0");
}

std::int64_t DataLoader::size() const {
  const std::int64_t n = samples(), b = options_->batch;
  return options_->drop_last ? n / b : n / b + (n % b != 0);
}

std::vector<std::int64_t> DataLoader::order(std::uint64_t epoch) const {
  if (options_->shuffle) return permutation({options_->seed, kOrderStream, epoch}, samples());
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(samples()));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  return numbers;
}

void DataLoader::set_epoch(std::uint64_t epoch, std::int64_t first_batch) {
  if (first_batch < 0 || first_batch > size()) {
    throw UsageError("[DataLoader] batch " + std::to_string(first_batch) + " of " + std::to_string(size()));
  }
  epoch_ = epoch;
  first_batch_ = first_batch;
}

DataLoader::Iterator DataLoader::begin() {
  auto epoch = std::make_shared<Epoch>();
  epoch->data = data_.contiguous(where_);
  epoch->labels = labels_.contiguous(where_);
  epoch->options = options_;
  epoch->number = epoch_;
  epoch->order = order(epoch_);
  epoch->batches = size();
  epoch->where = where_;
  Iterator iterator(std::move(epoch), first_batch_);
  ++epoch_;
  first_batch_ = 0;
  return iterator;
}

DataLoader::Iterator::Iterator(std::shared_ptr<const Epoch> epoch, std::int64_t first)
    : epoch_(std::move(epoch)), next_(first) {
  fill();
}

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  ahead_.pop_front();
  fill();
  return *this;
}

void DataLoader::Iterator::fill() {
  const DataLoaderOptions& options = *epoch_->options;
  while (next_ < epoch_->batches && ahead_.size() <= static_cast<std::size_t>(options.prefetch)) {
    const std::int64_t batch = next_, rows = static_cast<std::int64_t>(epoch_->rows(batch).size());
    // The I/O lane writes to host memory, of which other devices get copies.
    NDArray x = detail::empty_pinned(with_rows(rows, epoch_->sample_shape()), options.dtype, options.device);
    NDArray y = detail::empty_pinned(with_rows(rows, without_rows(epoch_->labels.shape())), epoch_->labels.dtype(),
                                     options.label_device);
    push_op([epoch = epoch_, batch](ArrayContext& context) { epoch->make(context, batch); },
            {epoch_->data, epoch_->labels}, {x, y}, {.on = io(), .name = "load batch", .bytes = x.bytes() + y.bytes()},
            epoch_->where);
    ahead_.push_back({x.to(options.device, epoch_->where), y.to(options.label_device, epoch_->where)});
    ++next_;
  }
}

}  // namespace sluice
