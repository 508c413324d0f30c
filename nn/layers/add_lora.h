// Changes of low rank beside Linear layers, for training a large net with few parameters.
//
//   nn::load("model.safetensors", {{"", net}});
//   nn::freeze(net, "*");
//   for (Block& block : net.blocks) nn::add_lora(block.attention.qkv, {.rank = 8});
//   nn::complete(net, seed);                          // gives the new parts their first values
//   ... training ...
//   for (Block& block : net.blocks) nn::merge_lora(block.attention.qkv);   // the net has its first shape again
#pragma once

#include <cstdint>
#include <source_location>

#include "sluice/nn/layers/linear.h"

namespace sluice::nn {

struct LoraOptions {
  std::int64_t rank = 8;
  double alpha = 16;
};
/// Freezes the layer's weight and bias, which then have neither gradient nor optimiser state, and gives it a Lora. That
/// has values after nn::complete, and belongs to an nn::Optimizer that is made after this. Of a net on a mesh say
/// nn::place after this, and where the weight is cut by columns cut `a` likewise:
///   {"*.down", {.weight = shard(1), .out = replicate}}, {"*.down.lora", {.others = {{"a", shard(1)}}}}
/// Throws UsageError where the layer has one already, and for a rank below 1 or above the layer's sizes.
void add_lora(Linear& layer, const LoraOptions& options = {},
              std::source_location where = std::source_location::current());
/// Adds scale b . a to the weight and drops the Lora. Weight and bias stay frozen until nn::freeze says otherwise.
/// Pushes and returns. Throws UsageError where there is none, or it has no values.
void merge_lora(Linear& layer, std::source_location where = std::source_location::current());

}  // namespace sluice::nn
