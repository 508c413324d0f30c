// The peer of bench/large_ops.cc: libtorch's C++ interface.
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>

#include "large_ops.h"

int main(int argc, char** argv) {
  using torch::Tensor;
  const large_ops::Options options = large_ops::parse(argc, argv);
  torch::set_num_threads(options.threads);
  const torch::InferenceMode no_gradients;
  const auto matrix = [](std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
    std::vector<float> values = large_ops::numbers(rows * columns, seed);
    return torch::from_blob(values.data(), {rows, columns}).clone();
  };
  Tensor x = matrix(large_ops::kRows, large_ops::kColumns, 1);
  const Tensor z = matrix(large_ops::kRows, large_ops::kColumns, 2), row = matrix(1, large_ops::kColumns, 3);
  const Tensor a = matrix(large_ops::kMatrix, large_ops::kMatrix, 4),
               b = matrix(large_ops::kMatrix, large_ops::kMatrix, 5);
  const Tensor a16 = a.to(torch::kBFloat16), b16 = b.to(torch::kBFloat16);
  const Tensor rows = torch::from_blob(large_ops::numbers(large_ops::kRows, 6).data(), {large_ops::kRows})
                          .add(1)
                          .mul(2047)
                          .to(torch::kLong);
  const Tensor flat = x.reshape({-1});
  const std::map<std::string, std::function<Tensor()>> run = {
      {"add", [&] { return x + z; }},
      {"add_in_place", [&] { return x += z; }},
      {"mul_number", [&] { return x * 2; }},
      {"exp", [&] { return torch::exp(x); }},
      {"tanh", [&] { return torch::tanh(x); }},
      {"gelu", [&] { return torch::gelu(x); }},
      {"relu", [&] { return torch::relu(x); }},
      {"where", [&] { return torch::where(x > 0, x, z); }},
      {"broadcast_add", [&] { return x + row; }},
      {"sum", [&] { return torch::sum(x); }},
      {"sum_rows", [&] { return torch::sum(x, 1); }},
      {"sum_columns", [&] { return torch::sum(x, 0); }},
      {"max", [&] { return torch::max(x); }},
      {"argmax_rows", [&] { return torch::argmax(x, 1); }},
      {"variance_rows", [&] { return torch::var(x, 1); }},
      {"softmax", [&] { return torch::softmax(x, 1); }},
      {"layer_norm", [&] { return torch::layer_norm(x, {large_ops::kColumns}); }},
      {"cumsum", [&] { return torch::cumsum(x, 1); }},
      {"copy", [&] { return x.clone(); }},
      {"transpose", [&] { return x.t().contiguous(); }},
      {"concat",
       [&] {
         return torch::cat({x, z}, 1);
       }},
      {"gather_rows", [&] { return x.index_select(0, rows); }},
      {"sort", [&] { return std::get<0>(torch::sort(flat)); }},
      {"sort_rows", [&] { return std::get<0>(torch::sort(x, 1)); }},
      {"topk_rows", [&] { return std::get<0>(torch::topk(x, 16, 1)); }},
      {"matmul", [&] { return torch::matmul(a, b); }},
      {"bf16_matmul", [&] { return torch::matmul(a16, b16); }},
  };
  const auto& operation = run.at(std::string(options.operation));
  Tensor result;
  large_ops::report(options, [&] {
    result = Tensor();
    result = operation();
  });
  return 0;
}
