#include "sluice/nn/layers/add_lora.h"

#include <algorithm>
#include <string>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/nn/net/net.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"

namespace sluice::nn {

void add_lora(Linear& layer, const LoraOptions& options, std::source_location where) {
  const std::int64_t rank = options.rank, most = std::min<std::int64_t>(layer.in, layer.out);
  if (layer.lora) throw ArrayError("nn::add_lora", where, "the layer has one already: nn::merge_lora comes first");
  if (rank < 1 || rank > most) {
    throw ArrayError("nn::add_lora", where,
                     "rank " + std::to_string(rank) + " for a layer of " + std::to_string(layer.in) + " and " +
                         std::to_string(layer.out) + ": from 1 to the smaller one is wanted");
  }
  freeze(layer, "*", true, where);
  layer.lora.emplace(Lora{layer.in, layer.out, rank, options.alpha / static_cast<double>(rank), layer.where});
}

void merge_lora(Linear& layer, std::source_location where) {
  if (!layer.lora) throw ArrayError("nn::merge_lora", where, "the layer has no Lora");
  const sluice::detail::Called called("nn::merge_lora", where);
  const NoGrad off;
  const NDArray& weight = layer.weight.value();
  layer.weight = weight + matmul(Operand(layer.lora->b, where), layer.lora->a) * layer.lora->scale;
  layer.lora.reset();
}

}  // namespace sluice::nn
