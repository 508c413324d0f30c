#include "sluice/nn/data/sequences.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "sluice/engine/errors.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/nn/data/table.h"

namespace sluice::nn {
namespace {

HostTensor filled(DType dtype, const Dims& shape, std::int64_t value = 0) {
  HostTensor tensor{dtype, shape, {}};
  tensor.bytes.resize(formats::checked_bytes(dtype, shape).value());
  if (dtype == DType::i64) std::ranges::fill(tensor.as<std::int64_t>(), value);
  return tensor;
}

void require(bool fine, const char* function, std::source_location where, const std::string& message) {
  if (!fine) throw UsageError("[" + std::string(function) + "] " + sluice::to_string(where) + ": " + message);
}
/// Of i64, the largest dtype here.
void require_bytes(const Dims& shape, const char* function, std::source_location where) {
  require(formats::checked_bytes(DType::i64, shape).has_value(), function, where,
          std::to_string(shape[0]) + " rows of " + std::to_string(shape[1]) + " tokens are too many bytes");
}

}  // namespace

Padded padded(const Sequences& sequences, std::int64_t value, std::int64_t multiple, std::source_location where) {
  require(!sequences.empty() && multiple >= 1, "nn::padded", where,
          std::to_string(sequences.size()) + " sequences and a multiple of " + std::to_string(multiple) +
              ": at least 1 each is wanted");
  std::size_t longest = 1;
  for (const auto& sequence : sequences) longest = std::max(longest, sequence.size());
  const auto n = static_cast<std::int64_t>(sequences.size());
  const std::int64_t length = (static_cast<std::int64_t>(longest) - 1) / multiple * multiple + multiple;
  require_bytes({n, length}, "nn::padded", where);
  HostTensor x = filled(DType::i64, {n, length}, value), mask = filled(DType::boolean, {n, length}),
             lengths = filled(DType::i64, {n});
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i) * length;
    std::copy(sequences[i].begin(), sequences[i].end(), x.as<std::int64_t>().begin() + at);
    std::fill_n(mask.bytes.begin() + at, sequences[i].size(), std::byte{1});
    lengths.as<std::int64_t>()[i] = static_cast<std::int64_t>(sequences[i].size());
  }
  return {column(std::move(x)), column(std::move(mask)), column(std::move(lengths))};
}

Packed packed(const Sequences& sequences, std::int64_t length, std::int64_t value, std::source_location where) {
  require(length >= 1, "nn::packed", where, "rows of " + std::to_string(length) + " tokens: at least 1 is wanted");
  std::vector<std::int64_t> used, segments_of;                                  // by row: tokens, and sequences
  std::set<std::pair<std::int64_t, std::int64_t>> by_room;                      // (room, row)
  std::vector<std::pair<std::int64_t, std::int64_t>> places(sequences.size());  // row and column of each sequence
  std::vector<std::int64_t> segment(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto tokens = static_cast<std::int64_t>(sequences[i].size());
    if (tokens > length) {
      require(false, "nn::packed", where,
              "sequence " + std::to_string(i) + " of " + std::to_string(tokens) + " tokens, and rows of " +
                  std::to_string(length));
    }
    if (tokens == 0) continue;
    auto found = by_room.lower_bound({tokens, 0});
    if (found == by_room.end()) {
      found = by_room.emplace(length, static_cast<std::int64_t>(used.size())).first;
      used.push_back(0);
      segments_of.push_back(0);
    }
    const auto [room, row] = *found;
    by_room.erase(found);
    const auto r = static_cast<std::size_t>(row);
    places[i] = {row, used[r]};
    segment[i] = ++segments_of[r];
    used[r] += tokens;
    by_room.emplace(room - tokens, row);
  }
  require(!used.empty(), "nn::packed", where, "no sequence has a token");
  const Dims shape{static_cast<std::int64_t>(used.size()), length};
  require_bytes(shape, "nn::packed", where);
  HostTensor x = filled(DType::i64, shape, value), segments = filled(DType::i64, shape),
             numbers = filled(DType::i64, shape);
  const auto to_x = x.as<std::int64_t>(), to_segments = segments.as<std::int64_t>(),
             to_numbers = numbers.as<std::int64_t>();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t begin = places[i].first * length + places[i].second;
    for (std::size_t k = 0; k < sequences[i].size(); ++k) {
      const std::size_t at = static_cast<std::size_t>(begin) + k;
      to_x[at] = sequences[i][k];
      to_segments[at] = segment[i];
      to_numbers[at] = static_cast<std::int64_t>(k);
    }
  }
  return {column(std::move(x)), column(std::move(segments)), column(std::move(numbers))};
}

}  // namespace sluice::nn
