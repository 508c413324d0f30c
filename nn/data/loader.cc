#include "sluice/nn/data/loader.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "sluice/ndarray/called.h"
#include "sluice/resources/random.h"

namespace sluice::nn {
namespace {

/// The loader's random streams: the order of an epoch, and the keys that maps get.
constexpr std::uint64_t kOrderStream = 0x6f72646572, kMapStream = 0x6d6170;

Dims sample_of(const Dims& shape) { return Dims(std::span(shape.begin() + 1, shape.end())); }

Dims with_rows(std::int64_t rows, const Dims& sample) {
  Dims shape{rows};
  for (const std::int64_t size : sample) shape.push_back(size);
  return shape;
}

Map::Result result_of(const Map& map, const NDArray& column) {
  const Dims sample = sample_of(column.shape());
  return map.result ? map.result(sample, column.dtype()) : Map::Result{sample, column.dtype()};
}

/// Rows of `in`, through the map, to `out`.
void make_column(const Map& map, const TensorView& in, const TensorView& out, std::span<const std::int64_t> rows,
                 const RandomKey& epoch) {
  const Dims from = sample_of(in.shape), to = sample_of(out.shape);
  const std::int64_t in_bytes = from.count() * static_cast<std::int64_t>(size_of(in.dtype));
  const std::int64_t out_bytes = to.count() * static_cast<std::int64_t>(size_of(out.dtype));
  std::byte* at = out.data;
  for (const std::int64_t row : rows) {
    std::byte* const sample = in.data + row * in_bytes;
    if (map.apply) {
      RandomKey key = epoch;
      key.draw = static_cast<std::uint64_t>(row);
      map.apply({sample, in.dtype, from, row_major(from)}, {at, out.dtype, to, row_major(to)}, key);
    } else {
      std::memcpy(at, sample, static_cast<std::size_t>(in_bytes));
    }
    at += out_bytes;
  }
}

}  // namespace

struct Loader::Pass final : Epoch {
  Table table;
  std::shared_ptr<const LoaderOptions> options;
  std::vector<std::int64_t> order;
  Map::Result of_x, of_y;
  RandomKey key;

  std::span<const std::int64_t> rows(std::int64_t batch) const {
    const std::int64_t begin = batch * options->batch;
    const std::int64_t n = std::min(options->batch, static_cast<std::int64_t>(order.size()) - begin);
    return std::span(order).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
  }
  Spec spec(const Map::Result& of, std::int64_t batch) const {
    return {with_rows(static_cast<std::int64_t>(rows(batch).size()), of.shape), of.dtype, options->device};
  }
  Spec x(std::int64_t batch) const override { return spec(of_x, batch); }
  Spec y(std::int64_t batch) const override { return spec(of_y, batch); }
  std::vector<NDArray> inputs() const override { return {table.x, table.y}; }
  void make(ArrayContext& context, std::int64_t batch) const override {
    make_column(options->x, context.input(0), context.output(0), rows(batch), key);
    make_column(options->y, context.input(1), context.output(1), rows(batch), key);
  }
};

std::int64_t Loader::batches_of(const Table& table, const LoaderOptions& o, std::source_location where) {
  const auto require = [&](bool fine, const std::string& message) {
    if (!fine) throw ArrayError("nn::Loader", where, message);
  };
  table.x.checked("nn::Loader", where);
  table.y.checked("nn::Loader", where);
  require(table.x.rank() >= 1 && table.y.rank() >= 1 && table.x.shape()[0] == table.y.shape()[0],
          "columns " + to_string(table.x.shape()) + " and " + to_string(table.y.shape()) + " of two lengths");
  require(table.x.device().kind == DeviceKind::cpu && table.y.device().kind == DeviceKind::cpu,
          "columns on " + sluice::to_string(table.x.device()) + " and " + sluice::to_string(table.y.device()) +
              ": both must be in host memory");
  require(o.batch >= 1, "a batch of " + std::to_string(o.batch) + ": at least 1 is wanted");
  require(o.prefetch >= 0, "a prefetch of " + std::to_string(o.prefetch) + ": at least 0 is wanted");
  require(!o.workers || o.workers->kind == DeviceKind::cpu,
          "workers on " + (o.workers ? sluice::to_string(*o.workers) : "") + ": a CPU device is wanted");
  const std::int64_t n = table.x.shape()[0];
  return o.drop_last ? n / o.batch : n / o.batch + (n % o.batch != 0);
}

Loader::Loader(const Table& table, LoaderOptions options, std::source_location where)
    : Feed(batches_of(table, options, where), options.prefetch,
           options.workers ? sluice::Place(*options.workers) : io(), where),
      table_{table.x.contiguous(where), table.y.contiguous(where)},
      options_(std::make_shared<const LoaderOptions>(std::move(options))),
      where_(where) {
  const sluice::detail::Called called("nn::Loader", where);
  for (const auto& [map, column] : {std::pair{&options_->x, &table_.x}, {&options_->y, &table_.y}}) {
    const Map::Result result = result_of(*map, *column);
    const std::int64_t rows = std::min(options_->batch, samples());
    check_shape("nn::Loader", with_rows(rows, result.shape), result.dtype, where);
  }
}

std::vector<std::int64_t> Loader::order(std::uint64_t epoch) const {
  if (options_->shuffle) return permutation({options_->seed, kOrderStream, epoch}, samples());
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(samples()));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  return numbers;
}

std::shared_ptr<const Feed::Epoch> Loader::start(std::uint64_t epoch) const {
  auto pass = std::make_shared<Pass>();
  pass->table = table_;
  pass->options = options_;
  pass->order = order(epoch);
  pass->of_x = result_of(options_->x, table_.x);
  pass->of_y = result_of(options_->y, table_.y);
  pass->key = RandomStream(options_->seed, kMapStream).derive(epoch).state();
  return pass;
}

}  // namespace sluice::nn
