#include "sluice/nn/files/rename.h"

#include <algorithm>
#include <utility>

#include "sluice/ndarray/called.h"
#include "sluice/operators/shaping.h"

namespace sluice::nn {
namespace {

void check_stars(const std::string& from, const std::string& to) {
  if (std::ranges::count(from, '*') == std::ranges::count(to, '*')) return;
  throw UsageError("[nn::Rename] '" + from + "' and '" + to + "' differ in the number of their '*'");
}

std::string text_of(const std::vector<NDArray>& tensors) {
  std::string text;
  for (const NDArray& x : tensors) {
    text += (text.empty() ? "" : ", ") + std::string(name_of(x.dtype())) + " " + to_string(x.shape());
  }
  return text;
}

NDArray transposed_matrix(const NDArray& x) { return x.rank() == 2 ? x.swapaxes(0, 1) : x; }

}  // namespace

Rename::Rename(std::string from_, std::string to_, Conversion convert_)
    : from{std::move(from_)}, to(std::move(to_)), convert(std::move(convert_)) {
  check_stars(from.front(), to);
}

Rename::Rename(std::initializer_list<std::string> from_, std::string to_, Conversion convert_)
    : from(from_), to(std::move(to_)), convert(std::move(convert_)) {
  if (from.empty() || !convert) {
    throw UsageError("[nn::Rename] tensors that become '" + to + "': one at least is wanted, and a conversion");
  }
  for (const std::string& one : from) check_stars(one, to);
}

NDArray Transposed::operator()(const std::vector<NDArray>& tensors) const {
  if (tensors.size() != 1 || tensors[0].rank() < 1 || tensors[0].rank() > 2) {
    throw UsageError("[nn::Transposed] " + text_of(tensors) + ": one matrix or vector is wanted");
  }
  return transposed_matrix(tensors[0]);
}

NDArray Qkv::operator()(const std::vector<NDArray>& tensors) const {
  const auto refuse = [&] {
    throw UsageError("[nn::Qkv] " + text_of(tensors) + ": do not fit " + std::to_string(heads) + " heads and " +
                     std::to_string(kv_heads) + " of keys and values");
  };
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || tensors.empty() || tensors.size() > 3) refuse();
  std::vector<NDArray> parts;
  for (const NDArray& x : tensors) {
    if (x.rank() < 1 || x.rank() > 2 || x.rank() != tensors[0].rank() || x.dtype() != tensors[0].dtype()) refuse();
    parts.push_back(transposed ? transposed_matrix(x) : x);
    if (x.rank() == 2 && parts.back().size(1) != parts[0].size(1)) refuse();
  }
  if (parts.size() == 1) {
    const NDArray whole = parts[0];
    const std::int64_t of_size = heads + 2 * kv_heads, end = whole.size(0);
    if (end % of_size != 0) refuse();
    const std::int64_t keys = end / of_size * heads, values = end - end / of_size * kv_heads;
    parts = {whole.narrow(0, 0, keys), whole.narrow(0, keys, values), whole.narrow(0, values, end)};
  }
  const std::int64_t key_rows = parts.back().size(0), size = key_rows / kv_heads;
  if (key_rows % kv_heads != 0 || parts[parts.size() - 2].size(0) != key_rows ||
      (parts.size() == 3 && parts[0].size(0) != heads * size)) {
    refuse();
  }
  std::int64_t rows = 0;
  for (NDArray& part : parts) {  // (kv_heads, rows of one, ...)
    rows += part.size(0);
    Dims by_head{kv_heads, part.size(0) / kv_heads};
    if (part.rank() == 2) by_head = {kv_heads, part.size(0) / kv_heads, part.size(1)};
    part = part.reshape(by_head);
  }
  const NDArray joined = concat(parts, 1);
  return joined.rank() == 3 ? joined.reshape({rows, joined.size(2)}) : joined.reshape({rows});
}

}  // namespace sluice::nn
