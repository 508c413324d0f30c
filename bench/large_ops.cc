// Operators on large arrays: our side of bench/operators.sh.
#include <functional>
#include <map>
#include <string>

#include "peers/large_ops.h"
#include "sluice/sluice.h"

using namespace sluice;

int main(int argc, char** argv) {
  const large_ops::Options options = large_ops::parse(argc, argv);
  Engine engine({.threads = options.threads});
  set_default_engine(&engine);
  {
    const auto matrix = [](std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
      return from(large_ops::numbers(rows * columns, seed), {rows, columns});
    };
    NDArray x = matrix(large_ops::kRows, large_ops::kColumns, 1);
    const NDArray z = matrix(large_ops::kRows, large_ops::kColumns, 2), row = matrix(1, large_ops::kColumns, 3);
    const NDArray a = matrix(large_ops::kMatrix, large_ops::kMatrix, 4);
    const NDArray b = matrix(large_ops::kMatrix, large_ops::kMatrix, 5);
    const NDArray a16 = a.to(DType::bf16), b16 = b.to(DType::bf16);
    const NDArray rows =
        ((from(large_ops::numbers(large_ops::kRows, 6), {large_ops::kRows}) + 1) * 2047).to(DType::i64);
    const NDArray flat = x.reshape({-1});
    const std::map<std::string, std::function<NDArray()>> run = {
        {"add", [&] { return x + z; }},
        {"add_in_place", [&] { return x += z; }},
        {"mul_number", [&] { return x * 2; }},
        {"exp", [&] { return exp(x); }},
        {"tanh", [&] { return tanh(x); }},
        {"gelu", [&] { return gelu(x); }},
        {"relu", [&] { return relu(x); }},
        {"where", [&] { return where(x > 0, x, z); }},
        {"broadcast_add", [&] { return x + row; }},
        {"sum", [&] { return sum(x); }},
        {"sum_rows", [&] { return sum(x, 1); }},
        {"sum_columns", [&] { return sum(x, 0); }},
        {"max", [&] { return max(x); }},
        {"argmax_rows", [&] { return argmax(x, 1); }},
        {"variance_rows", [&] { return variance(x, 1); }},
        {"softmax", [&] { return softmax(x, 1); }},
        {"layer_norm", [&] { return layer_norm(x); }},
        {"cumsum", [&] { return cumsum(x, 1); }},
        {"copy", [&] { return x.copy(); }},
        {"transpose", [&] { return x.transpose().contiguous(); }},
        {"concat",
         [&] {
           return concat({x, z}, 1);
         }},
        {"gather_rows", [&] { return x(rows); }},
        {"sort", [&] { return sort(flat); }},
        {"sort_rows", [&] { return sort(x, 1); }},
        {"topk_rows", [&] { return topk(x, 16, 1).values; }},
        {"matmul", [&] { return matmul(a, b); }},
        {"bf16_matmul", [&] { return matmul(a16, b16); }},
    };
    engine.wait_all();
    const auto& operation = run.at(std::string(options.operation));
    NDArray result;
    large_ops::report(options, [&] {
      result = {};
      result = operation();
      engine.wait_all({.help = false});  // as many threads compute as the peer has
    });
  }
  set_default_engine(nullptr);
  return 0;
}
