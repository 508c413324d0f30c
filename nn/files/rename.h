// Names and tensors of other programs' files become parameters of a net: what LoadOptions::rename (save.h) is made of.
//
//   {"encoder.layer.*.output.dense.", "blocks.*.down."}                           // another name
//   {"h.*.mlp.c_fc.", "blocks.*.up.", nn::Transposed{}}                           // and (in, out), not (out, in)
//   {{"layers.*.q.", "layers.*.k.", "layers.*.v."}, "blocks.*.attention.qkv.", nn::Qkv{.heads = 8, .kv_heads = 2}}
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "sluice/ndarray/nd_array.h"
#include "sluice/nn/net/parameter.h"

namespace sluice::nn {

/// Makes a parameter's value of tensors of a file, in the order of Rename::from. It is called twice: without elements
/// (shapes_of), to see what it gives, and when everything fits. What it throws is listed with what else is wrong.
using Conversion = std::function<NDArray(const std::vector<NDArray>& tensors)>;

/// What names of a file become. `from` is a beginning of a name, in which each `*` stands for one character or more,
/// but for no dot; the `*` of `to` stand for the same texts in the same order, and the rest of the name follows. So
/// {"layer.*.output.", "blocks.*.down."} makes "blocks.3.down.weight" of "layer.3.output.weight", and leaves
/// "layer.3.attention.output.weight" alone. Several beginnings, whose stars stand for the same, are tensors of which
/// the conversion makes one.
struct Rename {
  /// Throws UsageError where the numbers of `*` differ.
  Rename(std::string from, std::string to, Conversion convert = {});
  Rename(std::initializer_list<std::string> from, std::string to, Conversion convert);

  std::vector<std::string> from;
  std::string to;
  Conversion convert;  ///< none: as it is
};

/// A matrix (in, out), as GPT-2's Conv1D and Keras' Dense keep it, for one of (out, in). What has one axis, such as a
/// bias, stays. Throws UsageError for other numbers of axes or tensors.
struct Transposed {
  NDArray operator()(const std::vector<NDArray>& tensors) const;
};

/// Rows (or elements of a bias) in the order of SelfAttention::qkv: by key-value head, then its queries, its key, its
/// value. Of three tensors: queries (heads size, in), keys (kv_heads size, in), values (kv_heads size, in). Of one: the
/// same behind each other, as in_proj of PyTorch's MultiheadAttention and GPT-2's c_attn have them. Of two: keys and
/// values, for CrossAttention::kv. A file whose rows go by head already needs none of it. Throws UsageError where sizes
/// or dtypes do not fit.
struct Qkv {
  Size heads;
  std::int64_t kv_heads = heads;  ///< fewer: grouped heads
  bool transposed = false;        ///< matrices of the file are (in, rows), as Transposed takes them
  NDArray operator()(const std::vector<NDArray>& tensors) const;
};

}  // namespace sluice::nn
