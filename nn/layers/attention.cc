#include "sluice/operators/attention.h"

#include <algorithm>

#include "sluice/ndarray/grad_mode.h"
#include "sluice/nn/layers/attention.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/network.h"

namespace sluice::nn {
namespace {

void check(const char* layer, const NDArray& x, std::int64_t width, const std::source_location& where) {
  x.checked(layer, where);
  if (x.rank() != 3 || x.shape()[2] != width) {
    throw ArrayError(layer, where,
                     to_string(x.shape()) + ": (batch, positions, " + std::to_string(width) + ") is wanted");
  }
}

/// (batch, positions, groups, n, size) to (batch, groups n, positions, size), for elements [begin, end) of n.
NDArray heads_of(const NDArray& x, std::int64_t begin, std::int64_t end) {
  const Dims& s = x.shape();
  const NDArray part = x.narrow(3, begin, end).permute({0, 2, 3, 1, 4});
  return part.reshape({s[0], s[2] * (end - begin), s[1], s[4]});
}

/// (batch, heads, positions, size) to (batch, positions, heads size).
NDArray joined(const NDArray& y) {
  return y.swapaxes(1, 2).reshape({y.shape()[0], y.shape()[2], y.shape()[1] * y.shape()[3]});
}

}  // namespace

std::int64_t attention_rows(const char* layer, bool queries, std::int64_t width, std::int64_t heads,
                            std::int64_t kv_heads, const std::source_location& where) {
  check_shape(layer, {width}, DType::f32, where);
  if (heads < 1 || width < heads || width % heads != 0 || kv_heads < 1 || heads % kv_heads != 0) {
    throw ArrayError(layer, where,
                     "width " + std::to_string(width) + ", " + std::to_string(heads) + " heads, " +
                         std::to_string(kv_heads) +
                         " of keys and values: at least one is wanted, and each to divide the one before");
  }
  // No overflow: a width that can be an array's is far below the largest number.
  return ((queries ? heads : 0) + 2 * kv_heads) * (width / heads);
}

void KvCache::append(const NDArray& new_k, const NDArray& new_v, std::source_location where) {
  new_k.checked("KvCache", where);
  new_v.checked("KvCache", where);
  const Dims& s = new_k.shape();
  if (s.rank() != 4 || !(new_v.shape() == s)) {
    throw ArrayError("KvCache", where,
                     "keys " + to_string(s) + ", values " + to_string(new_v.shape()) +
                         ": the same (batch, heads, positions, size) is wanted of both");
  }
  if (k.defined() && (k.shape()[0] != s[0] || k.shape()[1] != s[1] || k.shape()[3] != s[3])) {
    throw ArrayError(
        "KvCache", where,
        "keys " + to_string(s) + " for a cache of " + to_string(k.shape()) + ": only positions may differ");
  }
  const NoGrad off;
  const DeviceScope scope(new_k.device());
  const std::int64_t wanted = length + s[2];
  if (!k.defined() || k.shape()[2] < wanted) {
    const std::int64_t room = std::max({capacity, 2 * length, wanted, std::int64_t{64}});
    for (NDArray* of : {&k, &v}) {
      const NDArray larger = zeros({s[0], s[1], room, s[3]}, new_k.dtype(), where);
      if (length > 0) larger.narrow(2, 0, length).assign(of->narrow(2, 0, length));
      *of = larger;
    }
    capacity = room;
  }
  k.narrow(2, length, wanted).assign(new_k);
  v.narrow(2, length, wanted).assign(new_v);
  length = wanted;
}

NDArray SelfAttention::operator()(const NDArray& x, const AttentionCall& call) const {
  (void)attention_rows("SelfAttention", true, width, heads, kv_heads, where);  // the fields may have been changed
  check("SelfAttention", x, width, where);
  if (call.cache && grad_mode()) {
    throw ArrayError("SelfAttention", where, "a cache is for nn::Evaluation or NoGrad, and gradients are recorded");
  }
  const std::int64_t queries = heads / kv_heads;
  const NDArray rows = qkv(x).reshape({x.shape()[0], x.shape()[1], kv_heads, queries + 2, width / heads});
  NDArray q = heads_of(rows, 0, queries), k = heads_of(rows, queries, queries + 1),
          v = heads_of(rows, queries + 1, queries + 2);
  const Here here = layer_of(proj.weight);
  if (rotary) {
    const RotaryOptions turn{.base = rotary_base, .first = call.cache ? call.cache->length : 0};
    q = rotary_embedding(Operand(q, where), turn);
    k = rotary_embedding(Operand(k, where), turn);
  }
  if (call.cache) {
    call.cache->append(k, v, where);
    k = call.cache->k.narrow(2, 0, call.cache->length);
    v = call.cache->v.narrow(2, 0, call.cache->length);
  }
  const NDArray y = attention(Operand(q, where), k, v, {.causal = call.causal, .mask = call.mask});
  return drop(proj(joined(y)));
}

NDArray CrossAttention::operator()(const NDArray& x, const NDArray& y, const NDArray& mask) const {
  (void)attention_rows("CrossAttention", false, width, heads, kv_heads, where);  // the fields may have been changed
  check("CrossAttention", x, width, where);
  check("CrossAttention", y, context, where);
  const std::int64_t size = width / heads;
  const NDArray of_x = q(x).reshape({x.shape()[0], x.shape()[1], kv_heads, heads / kv_heads, size});
  const NDArray of_y = kv(y).reshape({y.shape()[0], y.shape()[1], kv_heads, 2, size});
  const Here here = layer_of(proj.weight);
  const NDArray seen = attention(Operand(heads_of(of_x, 0, heads / kv_heads), where), heads_of(of_y, 0, 1),
                                 heads_of(of_y, 1, 2), {.mask = mask});
  return drop(proj(joined(seen)));
}

}  // namespace sluice::nn
