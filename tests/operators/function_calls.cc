#include "function_calls.h"

namespace sluice::testing {

std::vector<FunctionCall> function_calls() {
  std::vector<FunctionCall> list;
  FunctionCalls to(list);
  add_table_calls(to);
  add_elementwise_calls(to);
  add_reduction_calls(to);
  add_indexing_calls(to);
  add_rearranging_calls(to);
  add_product_calls(to);
  add_image_calls(to);
  add_normalisation_calls(to);
  add_network_calls(to);
  add_loss_calls(to);
  add_creation_calls(to);
  add_step_calls(to);
  add_view_calls(to);
  add_write_calls(to);
  add_host_calls(to);
  add_gradient_calls(to);
  add_layer_calls(to);
  add_net_calls(to);
  add_parallel_calls(to);
  return list;
}

}  // namespace sluice::testing
