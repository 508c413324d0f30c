// Attention layers, and the cache of keys and values for generating text.
#pragma once

#include <cstdint>
#include <source_location>

#include "sluice/nn/layers/linear.h"
#include "sluice/nn/layers/normalization.h"

namespace sluice::nn {

/// The keys and values of the positions that a layer has seen, so that the next call needs only the new ones. The
/// caller holds one for each layer, and passes it again:
///   std::vector<nn::KvCache> caches(net.blocks.size());
/// The arrays are written in place, and doubled where they are full, so that a token costs the same whether it is early
/// or late, but for the attention over what came before.
struct KvCache {
  std::int64_t length = 0;    ///< positions that are in it
  std::int64_t capacity = 0;  ///< of the arrays; set it before the first call if the length is known
  NDArray k{}, v{};           ///< (batch, key-value heads, capacity, head size)
  /// Appends k and v (batch, key-value heads, t, head size). Throws ArrayError for other sizes than before,
  /// and where k and v differ.
  void append(const NDArray& new_k, const NDArray& new_v, std::source_location where);
};

/// Rows of a matrix that makes the keys and values of width / heads elements each, and with `queries` the queries too.
/// Throws ArrayError with the layer's name and line where heads do not divide width, or kv_heads do not divide heads.
std::int64_t attention_rows(const char* layer, bool queries, std::int64_t width, std::int64_t heads,
                            std::int64_t kv_heads, const std::source_location& where);

struct AttentionCall {
  bool causal = false;
  NDArray mask{};            ///< AttentionOptions::mask; an empty handle: none
  KvCache* cache = nullptr;  ///< where gradients are recorded it throws
};

/// Maps x (batch, positions, width) to the same shape. Queries, keys and values are made by one matrix, whose rows are
/// ordered by key-value head, then its queries, its key, its value, then head size; so that a cut by heads is a cut of
/// one axis. The result goes through `proj`, and through a dropout of p.
struct SelfAttention {
  Size width, heads;
  double p = 0;
  std::int64_t kv_heads = heads;  ///< fewer: grouped heads; `heads` is a multiple
  bool rotary = false;            ///< rotary positions, counted from the cache's length
  double rotary_base = 10000;
  bool use_bias = true;
  std::source_location where = std::source_location::current();
  Linear qkv{width, attention_rows("SelfAttention", true, width, heads, kv_heads, where), use_bias, false, where};
  Linear proj{width, width, use_bias, false, where};
  Dropout drop{p, where};
  NDArray operator()(const NDArray& x, const AttentionCall& call = {}) const;
};

/// Queries of x (batch, positions, width) see keys and values of y (batch, other positions, context). Rows of `kv` are
/// ordered by key-value head, then key and value, then head size.
struct CrossAttention {
  Size width, heads;
  std::int64_t context = width;
  double p = 0;
  std::int64_t kv_heads = heads;
  bool use_bias = true;
  std::source_location where = std::source_location::current();
  Linear q{width, width, use_bias, false, where};
  Linear kv{context, attention_rows("CrossAttention", false, width, heads, kv_heads, where), use_bias, false, where};
  Linear proj{width, width, use_bias, false, where};
  Dropout drop{p, where};
  /// `mask` is AttentionOptions::mask.
  NDArray operator()(const NDArray& x, const NDArray& y, const NDArray& mask = {}) const;
};

}  // namespace sluice::nn
