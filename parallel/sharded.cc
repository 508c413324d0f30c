// Sharded linear layers, put together from recorded operators, so that their gradients are those operators' own.
#include "sluice/parallel/sharded.h"

#include "sluice/autograd/autograd.h"
#include "sluice/ndarray/called.h"
#include "sluice/nn/layers.h"
#include "sluice/operators/operators.h"

namespace sluice::parallel {
namespace {

std::int64_t share(std::int64_t size, const Communicator& group, const char* what, const std::source_location& where) {
  if (size % group.size() == 0) return size / group.size();
  throw UsageError(std::string("[") + what + "] " + call_site(where) + ": " + std::to_string(size) + " units for " +
                   std::to_string(group.size()) + " devices: they do not divide");
}

/// A leaf of its own on the device, with these elements.
NDArray leaf(const NDArray& part, Device device) {
  NoGrad no_grad;
  return part.copy().to(device).with_grad();
}

}  // namespace

ColumnLinear::ColumnLinear(std::int64_t in, std::int64_t out, Communicator group, RandomStream& stream,
                           const ColumnLinearOptions& options, std::source_location where)
    : group_(std::move(group)), relu_(options.relu) {
  const std::int64_t rows = share(out, group_, "ColumnLinear", where);
  DeviceScope device(group_.device(0));
  const Linear whole(in, out, stream, {}, where);
  for (int r = 0; r < group_.size(); ++r) {
    weights.push_back(leaf(whole.weight.narrow(0, r * rows, (r + 1) * rows), group_.device(r)));
    biases.push_back(leaf(whole.bias.narrow(0, r * rows, (r + 1) * rows), group_.device(r)));
  }
}

std::vector<NDArray> ColumnLinear::forward(const NDArray& x, std::source_location where) const {
  const sluice::detail::Called called("ColumnLinear", where);
  x.checked("ColumnLinear", where);
  std::vector<NDArray> columns;
  for (int r = 0; r < group_.size(); ++r) {
    DeviceScope device(group_.device(r));
    const auto rank = static_cast<std::size_t>(r);
    columns.push_back(linear(x.to(group_.device(r)), weights[rank], biases[rank], {.relu = relu_}));
  }
  return columns;
}

void ColumnLinear::collect(const std::string& prefix, std::vector<NamedParameter>& out) {
  for (std::size_t r = 0; r < weights.size(); ++r) {
    out.push_back({prefix + "weight." + std::to_string(r), &weights[r]});
    out.push_back({prefix + "bias." + std::to_string(r), &biases[r]});
  }
}

RowLinear::RowLinear(std::int64_t in, std::int64_t out, Communicator group, RandomStream& stream,
                     std::source_location where)
    : group_(std::move(group)) {
  const std::int64_t columns = share(in, group_, "RowLinear", where);
  DeviceScope device(group_.device(0));
  const Linear whole(in, out, stream, {}, where);
  for (int r = 0; r < group_.size(); ++r)
    weights.push_back(leaf(whole.weight.narrow(1, r * columns, (r + 1) * columns), group_.device(r)));
  bias = leaf(whole.bias, group_.device(0));
}

NDArray RowLinear::forward(const std::vector<NDArray>& x, std::source_location where) const {
  const sluice::detail::Called called("RowLinear", where);
  if (static_cast<int>(x.size()) != group_.size()) {
    throw ArrayError("RowLinear", where,
                     std::to_string(x.size()) + " arrays for " + std::to_string(group_.size()) + " ranks");
  }
  for (const NDArray& part : x) part.checked("RowLinear", where);
  std::vector<NDArray> products;
  for (int r = 0; r < group_.size(); ++r) {
    DeviceScope device(group_.device(r));
    products.push_back(linear(x[static_cast<std::size_t>(r)], weights[static_cast<std::size_t>(r)]));
  }
  const NDArray sum = all_reduce(group_, products).front();
  DeviceScope device(group_.device(0));
  return sum + bias;
}

void RowLinear::collect(const std::string& prefix, std::vector<NamedParameter>& out) {
  for (std::size_t r = 0; r < weights.size(); ++r) out.push_back({prefix + "weight." + std::to_string(r), &weights[r]});
  out.push_back({prefix + "bias", &bias});
}

ShardedMlp::ShardedMlp(std::int64_t in, std::int64_t hidden, std::int64_t out, const Communicator& group,
                       RandomStream& stream, std::source_location where)
    : first(in, hidden, group, stream, {.relu = true}, where),
      second(hidden, out, group, stream, where),
      home_(group.device(0)),
      where_(where) {}

NDArray ShardedMlp::forward(const NDArray& x) {
  std::vector<NDArray> columns;
  {
    const LayerScope layer("0");
    columns = first.forward(x, where_);
  }
  const LayerScope layer("1");
  return second.forward(columns, where_);
}

void ShardedMlp::collect(const std::string& prefix, std::vector<NamedParameter>& out) {
  first.collect(prefix + "0.", out);
  second.collect(prefix + "1.", out);
}

void ShardedMlp::to(Device device) {
  if (!(device == home_))
    throw UsageError("[ShardedMlp] its first rank is on " + sluice::to_string(home_) + ", not on " +
                     sluice::to_string(device));
}

}  // namespace sluice::parallel
