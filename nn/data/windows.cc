#include "sluice/nn/data/windows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "sluice/resources/random.h"

namespace sluice::nn {
namespace {

constexpr std::uint64_t kOrderStream = 0x77696e646f77, kOffsetStream = 0x6f6666736574;

/// Windows of an epoch that is not followed. A shuffled one begins at an offset below `length`.
std::int64_t windows_of(std::int64_t tokens, const WindowOptions& o) {
  return (o.shuffle ? tokens - o.length : tokens - 1) / o.length;
}

}  // namespace

struct Windows::Pass final : Epoch {
  NDArray tokens;
  WindowOptions options;
  std::vector<std::vector<std::int64_t>> begins;  ///< by batch

  Spec x(std::int64_t batch) const override {
    const auto rows = static_cast<std::int64_t>(begins[static_cast<std::size_t>(batch)].size());
    return {{rows, options.length}, tokens.dtype(), options.device};
  }
  Spec y(std::int64_t batch) const override { return x(batch); }
  std::vector<NDArray> inputs() const override { return {tokens}; }
  void make(ArrayContext& context, std::int64_t batch) const override {
    const TensorView& in = context.input(0);
    const auto size = static_cast<std::int64_t>(size_of(in.dtype));
    std::int64_t row = 0;
    for (const std::int64_t begin : begins[static_cast<std::size_t>(batch)]) {
      for (int k = 0; k < 2; ++k) {
        std::memcpy(context.output(k).data + row * options.length * size, in.data + (begin + k) * size,
                    static_cast<std::size_t>(options.length * size));
      }
      ++row;
    }
  }
};

std::int64_t Windows::batches_of(const NDArray& tokens, const WindowOptions& o, std::source_location where) {
  const auto require = [&](bool fine, const std::string& message) {
    if (!fine) throw ArrayError("nn::Windows", where, message);
  };
  tokens.checked("nn::Windows", where);
  const DType dtype = tokens.dtype();
  require(tokens.rank() == 1 && (dtype == DType::u8 || dtype == DType::i32 || dtype == DType::i64),
          to_string(tokens.spec()) + ": tokens are (n,) of u8, i32 or i64");
  require(tokens.device().kind == DeviceKind::cpu,
          "tokens on " + sluice::to_string(tokens.device()) + ": they must be in host memory");
  require(o.batch >= 1 && o.length >= 1 && o.prefetch >= 0,
          "batch " + std::to_string(o.batch) + ", length " + std::to_string(o.length) + ", prefetch " +
              std::to_string(o.prefetch) + ": at least 1, 1 and 0 are wanted");
  require(!(o.shuffle && o.follow), "shuffle and follow: rows that go on cannot be in another order");
  const std::int64_t n = tokens.count();
  std::int64_t batches = 0;
  if (o.follow) {
    batches = (n - 1) / o.batch / o.length;
  } else {
    const std::int64_t windows = std::max<std::int64_t>(0, windows_of(n, o));
    batches = windows / o.batch + (windows % o.batch != 0);
  }
  require(n > 0 && batches > 0, std::to_string(n) + " tokens are too few for a batch of " + std::to_string(o.batch) +
                                    " windows of " + std::to_string(o.length));
  return batches;
}

Windows::Windows(const NDArray& tokens, WindowOptions options, std::source_location where)
    : Feed(batches_of(tokens, options, where), options.prefetch, io(), where),
      tokens_(tokens.contiguous(where)),
      options_(options) {}

std::vector<std::vector<std::int64_t>> Windows::all_begins(std::uint64_t epoch) const {
  std::vector<std::vector<std::int64_t>> batches(static_cast<std::size_t>(size()));
  const std::int64_t n = tokens_.count();
  if (options_.follow) {
    const std::int64_t row = (n - 1) / options_.batch;
    for (std::int64_t batch = 0; batch < size(); ++batch) {
      for (std::int64_t i = 0; i < options_.batch; ++i) {
        batches[static_cast<std::size_t>(batch)].push_back(i * row + batch * options_.length);
      }
    }
    return batches;
  }
  const std::int64_t windows = windows_of(n, options_);
  std::vector<std::int64_t> order;
  std::int64_t offset = 0;
  if (options_.shuffle) {
    order = permutation({options_.seed, kOrderStream, epoch}, windows);
    offset = uniform_int(ElementKey({options_.seed, kOffsetStream, epoch}), 0, 0, options_.length);
  }
  for (std::int64_t i = 0; i < windows; ++i) {
    const std::int64_t window = order.empty() ? i : order[static_cast<std::size_t>(i)];
    batches[static_cast<std::size_t>(i / options_.batch)].push_back(offset + window * options_.length);
  }
  return batches;
}

std::vector<std::int64_t> Windows::begins(std::uint64_t epoch, std::int64_t batch) const {
  if (batch < 0 || batch >= size()) {
    throw UsageError("[nn::Windows::begins] batch " + std::to_string(batch) + " of " + std::to_string(size()));
  }
  return all_begins(epoch)[static_cast<std::size_t>(batch)];
}

std::shared_ptr<const Feed::Epoch> Windows::start(std::uint64_t epoch) const {
  auto pass = std::make_shared<Pass>();
  pass->tokens = tokens_;
  pass->options = options_;
  pass->begins = all_begins(epoch);
  return pass;
}

}  // namespace sluice::nn
