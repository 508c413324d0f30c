#include "sluice/nn/data/loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "sluice/engine/number_text.h"
#include "sluice/ndarray/called.h"
#include "sluice/resources/random.h"

namespace sluice::nn {
namespace {

/// The loader's random streams: the order of an epoch, and the keys that maps get.
constexpr std::uint64_t kOrderStream = 0x6f72646572, kMapStream = 0x6d6170, kWeightStream = 0x776569676874;

Dims sample_of(const Dims& shape) { return Dims(std::span(shape.begin() + 1, shape.end())); }

Dims with_rows(std::int64_t rows, const Dims& sample) {
  Dims shape{rows};
  for (const std::int64_t size : sample) shape.push_back(size);
  return shape;
}

TensorView view_of(std::byte* data, const Map::Result& sample) {
  return {data, sample.dtype, sample.shape, row_major(sample.shape)};
}

/// The rows of a batch, and what maps draw from.
struct Rows {
  std::span<const std::int64_t> numbers;
  RandomKey epoch;
  std::optional<std::int64_t> place;  ///< of the first in the epoch, where places key maps, not rows

  RandomKey key(std::size_t i) const {
    RandomKey key = epoch;
    key.draw = static_cast<std::uint64_t>(place ? *place + static_cast<std::int64_t>(i) : numbers[i]);
    return key;
  }
};

/// Rows of `in`, through the map, to `out`.
void make_column(const Map& map, const TensorView& in, const TensorView& out, const Rows& rows) {
  const Map::Result from{sample_of(in.shape), in.dtype}, to{sample_of(out.shape), out.dtype};
  std::byte* at = out.data;
  for (std::size_t i = 0; i < rows.numbers.size(); ++i) {
    std::byte* const sample = in.data + static_cast<std::size_t>(rows.numbers[i]) * from.bytes();
    if (map.apply) {
      map.apply(view_of(sample, from), view_of(at, to), rows.key(i));
    } else {
      std::memcpy(at, sample, from.bytes());
    }
    at += to.bytes();
  }
}

/// The same of samples that are read.
void read_column(const Map& map, const Samples& in, const TensorView& out, const Rows& rows) {
  const Map::Result from = in.sample(), to{sample_of(out.shape), out.dtype};
  std::vector<std::byte> bytes(map.apply ? from.bytes() : 0);
  std::byte* at = out.data;
  for (std::size_t i = 0; i < rows.numbers.size(); ++i) {
    const TensorView sample = view_of(map.apply ? bytes.data() : at, from);
    in.read(rows.numbers[i], sample);
    if (map.apply) map.apply(sample, view_of(at, to), rows.key(i));
    at += to.bytes();
  }
}

}  // namespace

struct Loader::Pass final : Epoch {
  Table table;
  std::shared_ptr<const Samples> lazy;
  std::shared_ptr<const LoaderOptions> options;
  std::vector<std::int64_t> order;
  Map::Result of_x, of_y;
  RandomKey key;

  Rows rows(std::int64_t batch) const {
    const std::int64_t begin = batch * options->batch;
    const std::int64_t n = std::min(options->batch, static_cast<std::int64_t>(order.size()) - begin);
    return {std::span(order).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n)), key,
            options->weights.empty() ? std::nullopt : std::optional(begin)};
  }
  Spec spec(const Map::Result& of, std::int64_t batch) const {
    return {with_rows(static_cast<std::int64_t>(rows(batch).numbers.size()), of.shape), of.dtype, options->device};
  }
  Spec x(std::int64_t batch) const override { return spec(of_x, batch); }
  Spec y(std::int64_t batch) const override { return spec(of_y, batch); }
  std::vector<NDArray> inputs() const override { return lazy ? std::vector{table.y} : std::vector{table.x, table.y}; }
  void make(ArrayContext& context, std::int64_t batch) const override {
    if (lazy) {
      read_column(options->x, *lazy, context.output(0), rows(batch));
    } else {
      make_column(options->x, context.input(0), context.output(0), rows(batch));
    }
    make_column(options->y, context.input(lazy ? 0 : 1), context.output(1), rows(batch));
  }
};

std::int64_t Loader::batches_of(const Table& table, const Samples* lazy, const LoaderOptions& o,
                                std::source_location where) {
  const auto require = [&](bool fine, const std::string& message) {
    if (!fine) throw ArrayError("nn::Loader", where, message);
  };
  const auto in_host_memory = [&](const NDArray& column) {
    require(column.device().kind == DeviceKind::cpu,
            "a column on " + sluice::to_string(column.device()) + ": it must be in host memory");
  };
  table.y.checked("nn::Loader", where);
  if (lazy) {
    require(table.y.rank() >= 1 && lazy->size() == table.y.shape()[0],
            std::to_string(lazy->size()) + " samples and a column " + to_string(table.y.shape()) + " of two lengths");
  } else {
    table.x.checked("nn::Loader", where);
    require(table.x.rank() >= 1 && table.y.rank() >= 1 && table.x.shape()[0] == table.y.shape()[0],
            "columns " + to_string(table.x.shape()) + " and " + to_string(table.y.shape()) + " of two lengths");
    in_host_memory(table.x);
  }
  in_host_memory(table.y);
  require(o.batch >= 1, "a batch of " + std::to_string(o.batch) + ": at least 1 is wanted");
  require(o.prefetch >= 0, "a prefetch of " + std::to_string(o.prefetch) + ": at least 0 is wanted");
  require(!o.workers || o.workers->kind == DeviceKind::cpu,
          "workers on " + (o.workers ? sluice::to_string(*o.workers) : "") + ": a CPU device is wanted");
  const std::int64_t n = table.y.shape()[0];
  require(o.weights.empty() || static_cast<std::int64_t>(o.weights.size()) == n,
          std::to_string(o.weights.size()) + " weights of " + std::to_string(n) + " samples");
  double sum = 0;
  for (const double weight : o.weights) {
    require(weight >= 0, "a weight of " + general_text(weight, 6) + ": at least 0 is wanted");
    sum += weight;
  }
  require(o.weights.empty() || (sum > 0 && std::isfinite(sum)),
          "weights whose sum is " + general_text(sum, 6) + ": a finite one above 0 is wanted");
  return o.drop_last ? n / o.batch : n / o.batch + (n % o.batch != 0);
}

Loader::Loader(const Table& table, LoaderOptions options, std::source_location where)
    : Loader(Table(table), nullptr, std::move(options), where) {}

Loader::Loader(const LazyTable& table, LoaderOptions options, std::source_location where)
    : Loader({{}, table.y}, table.x ? table.x : throw ArrayError("nn::Loader", where, "a table without samples"),
             std::move(options), where) {}

Loader::Loader(Table table, std::shared_ptr<const Samples> lazy, LoaderOptions&& options, std::source_location where)
    : Feed(batches_of(table, lazy.get(), options, where), options.prefetch,
           options.workers ? sluice::Place(*options.workers) : io(), where),
      table_{lazy ? NDArray() : table.x.contiguous(where), table.y.contiguous(where)},
      lazy_(std::move(lazy)),
      options_(std::make_shared<const LoaderOptions>(std::move(options))),
      where_(where) {
  const sluice::detail::Called called("nn::Loader", where);
  for (const Map::Result& result : {of_x(), of_y()}) {
    const std::int64_t rows = std::min(options_->batch, samples());
    check_shape("nn::Loader", with_rows(rows, result.shape), result.dtype, where);
  }
  std::partial_sum(options_->weights.begin(), options_->weights.end(), std::back_inserter(cumulated_));
}

Map::Result Loader::of_x() const {
  return options_->x.of(lazy_ ? lazy_->sample() : Map::Result{sample_of(table_.x.shape()), table_.x.dtype()});
}
Map::Result Loader::of_y() const { return options_->y.of({sample_of(table_.y.shape()), table_.y.dtype()}); }

std::vector<std::int64_t> Loader::order(std::uint64_t epoch) const {
  if (options_->shuffle && cumulated_.empty()) return permutation({options_->seed, kOrderStream, epoch}, samples());
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(samples()));
  if (!cumulated_.empty()) {
    const ElementKey key({options_->seed, kWeightStream, epoch});
    // The first that reaches the sum: where rounding makes a draw as large as it, that one is meant.
    const auto last = std::lower_bound(cumulated_.begin(), cumulated_.end(), cumulated_.back());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double drawn = uniform01_f64(key, i) * cumulated_.back();
      numbers[i] = std::upper_bound(cumulated_.begin(), last, drawn) - cumulated_.begin();
    }
    return numbers;
  }
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  return numbers;
}

std::shared_ptr<const Feed::Epoch> Loader::start(std::uint64_t epoch) const {
  auto pass = std::make_shared<Pass>();
  pass->table = table_;
  pass->lazy = lazy_;
  pass->options = options_;
  pass->order = order(epoch);
  pass->of_x = of_x();
  pass->of_y = of_y();
  pass->key = RandomStream(options_->seed, kMapStream).derive(epoch).state();
  return pass;
}

}  // namespace sluice::nn
