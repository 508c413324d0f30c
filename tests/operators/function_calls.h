// Calls of all public functions that take arrays. The table is compiled once, in the files function_calls_*.cc.
#pragma once

#include "function_call.h"

namespace sluice::testing {

std::vector<FunctionCall> function_calls();

void add_table_calls(FunctionCalls& to);
void add_elementwise_calls(FunctionCalls& to);
void add_reduction_calls(FunctionCalls& to);
void add_indexing_calls(FunctionCalls& to);
void add_rearranging_calls(FunctionCalls& to);
void add_product_calls(FunctionCalls& to);
void add_image_calls(FunctionCalls& to);
void add_normalisation_calls(FunctionCalls& to);
void add_network_calls(FunctionCalls& to);
void add_loss_calls(FunctionCalls& to);
void add_creation_calls(FunctionCalls& to);
void add_step_calls(FunctionCalls& to);
void add_view_calls(FunctionCalls& to);
void add_write_calls(FunctionCalls& to);
void add_host_calls(FunctionCalls& to);
void add_gradient_calls(FunctionCalls& to);
void add_layer_calls(FunctionCalls& to);
void add_net_calls(FunctionCalls& to);
void add_parallel_calls(FunctionCalls& to);

}  // namespace sluice::testing
