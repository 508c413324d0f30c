// Wrong programs on a mesh. Each is refused by one line, which is listed in refusals.txt, before anything is done.
// Where the line names a reshard the test does what it says, and the program then runs and gives what plain arrays
// give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <regex>
#include <sstream>

#include "operators_test_support.h"
#include "paths.h"
#include "placement_support.h"

namespace sluice::testing {
namespace {

struct Operand {
  Dims shape;
  sluice::Placement lies;
  DType dtype = DType::f64;
};

struct Wrong {
  std::string name;
  std::vector<Operand> operands;
  std::function<NDArray(const Arrays&)> program;
};

constexpr sluice::Placement R = replicate, P = partial(), S0 = shard(0), S1 = shard(1), S2 = shard(2), S3 = shard(3);

std::vector<Wrong> wrong_programs() {
  const Dims m{4, 6}, image{4, 2, 6, 6};
  const Operand rows{{4}, R, DType::i64};
  std::vector<Wrong> list;
  const auto add = [&](std::string name, std::vector<Operand> operands, std::function<NDArray(const Arrays&)> program) {
    list.push_back({std::move(name), std::move(operands), std::move(program)});
  };
  add("operands cut along two axes", {{m, S0}, {m, S1}}, [](const Arrays& x) { return x[0] + x[1]; });
  add("a bias beside terms", {{m, P}, {{6}, R}}, [](const Arrays& x) { return x[0] + x[1]; });
  add("terms beside a part", {{m, P}, {m, S0}}, [](const Arrays& x) { return x[0] - x[1]; });
  add("a product of terms", {{m, P}, {m, P}}, [](const Arrays& x) { return x[0] * x[1]; });
  add("a quotient by terms", {{m, R}, {m, P}}, [](const Arrays& x) { return x[0] / x[1]; });
  add("a function of terms", {{m, P}}, [](const Arrays& x) { return gelu(x[0]); });
  add("a power of terms", {{m, P}}, [](const Arrays& x) { return square(x[0]); });
  add("terms compared", {{m, P}, {m, R}}, [](const Arrays& x) { return x[0] > x[1]; });
  add("terms converted to integers", {{m, P}}, [](const Arrays& x) { return (x[0] * 4).to(DType::i64); });
  add("terms clipped", {{m, P}}, [](const Arrays& x) { return minimum(x[0], 0.5); });
  add("terms chosen from", {{m, P}, {m, S0}}, [](const Arrays& x) { return where(x[1] > 0, x[0], zeros_like(x[1])); });
  add("terms multiplied by parts", {{{4, 6}, P}, {{6, 4}, S0}}, [](const Arrays& x) { return matmul(x[0], x[1]); });
  add("rows and an inner size cut", {{{4, 6}, S0}, {{6, 4}, S0}}, [](const Arrays& x) { return matmul(x[0], x[1]); });
  add("a bias of a layer with a cut inner size", {{{4, 6}, S1}, {{8, 6}, S1}, {{8}, R}},
      [](const Arrays& x) { return linear(x[0], x[1], x[2]); });
  add("a layer of terms", {{{4, 6}, P}, {{8, 6}, R}, {{8}, R}},
      [](const Arrays& x) { return linear(x[0], x[1], x[2]); });
  add("relu in a layer with a cut inner size", {{{4, 6}, S1}, {{8, 6}, S1}},
      [](const Arrays& x) { return linear(x[0], x[1], {}, {.relu = true}); });
  add("softmax of cut rows", {{m, S1}}, [](const Arrays& x) { return softmax(x[0]); });
  add("softmax along a cut axis", {{m, S0}}, [](const Arrays& x) { return softmax(x[0], 0); });
  add("log_softmax of terms", {{m, P}}, [](const Arrays& x) { return log_softmax(x[0]); });
  add("layer_norm of cut rows", {{m, S1}}, [](const Arrays& x) { return layer_norm(x[0]); });
  add("rms_norm of terms", {{m, P}, {{6}, R}}, [](const Arrays& x) { return rms_norm(x[0], x[1]); });
  add("group_norm of cut channels", {{image, S1}}, [](const Arrays& x) { return group_norm(x[0], 1); });
  add("attention over cut positions", {{{2, 2, 6, 3}, S2}, {{2, 2, 6, 3}, S2}, {{2, 2, 6, 3}, S2}},
      [](const Arrays& x) { return attention(x[0], x[1], x[2]); });
  add("attention over cut features", {{{2, 2, 6, 4}, S3}, {{2, 2, 6, 4}, S3}, {{2, 2, 6, 4}, S3}},
      [](const Arrays& x) { return attention(x[0], x[1], x[2]); });
  add("cumsum along a cut axis", {{m, S0}}, [](const Arrays& x) { return cumsum(x[0], 0); });
  add("sort along a cut axis", {{m, S1}}, [](const Arrays& x) { return sort(x[0]); });
  add("the largest place along a cut axis", {{m, S1}}, [](const Arrays& x) { return argmax(x[0], 1); });
  add("a maximum of nothing", {{{1, 6}, S0}}, [](const Arrays& x) { return max(x[0], 0); });
  add("a product of elements along a cut axis", {{m, S0}}, [](const Arrays& x) { return prod(x[0], 0); });
  add("concat along a cut axis", {{m, S0}, {m, S0}}, [](const Arrays& x) { return concat({x[0], x[1]}, 0); });
  add("a part of a cut axis", {{m, S0}}, [](const Arrays& x) { return x[0].narrow(0, 1, 3); });
  add("an element of a cut axis", {{m, S1}}, [](const Arrays& x) { return x[0](all, 2); });
  add("a cut axis reversed", {{m, S0}}, [](const Arrays& x) { return x[0](reversed()); });
  add("an inner axis merged", {{m, S1}}, [](const Arrays& x) { return x[0].reshape({24}); });
  add("a cut axis split", {{{6, 4}, S0}}, [](const Arrays& x) { return x[0].reshape({3, 2, 4}); });
  add("logits that are terms", {{m, P}, rows}, [](const Arrays& x) { return cross_entropy(x[0], x[1]); });
  add("columns taken along a cut axis", {{m, S1}, {{4, 2}, R, DType::i64}},
      [](const Arrays& x) { return take_along_axis(x[0], x[1], 1); });
  add("a convolution over cut lines", {{image, S2}, {{3, 2, 3, 3}, R}},
      [](const Arrays& x) { return conv2d(x[0], x[1]); });
  add("a convolution's bias beside cut channels", {{image, S1}, {{3, 2, 3, 3}, S1}, {{3}, R}},
      [](const Arrays& x) { return conv2d(x[0], x[1], x[2]); });
  add("pooling over cut columns", {{image, S3}}, [](const Arrays& x) { return max_pool2d(x[0], 2); });
  add("a decomposition of a cut matrix", {{{4, 4}, S0}}, [](const Arrays& x) { return inv(x[0]); });
  add("einsum of an index cut twice", {{{4, 6}, S0}, {{6, 4}, S0}}, [](const Arrays& x) {
    return einsum("ij,jk->ik", {x[0], x[1]});
  });
  add("a write of another layout", {{m, S0}, {m, S1}}, [](const Arrays& x) {
    NDArray y = x[0].copy();
    y += x[1];
    return y;
  });
  add("terms assigned", {{m, R}, {m, P}}, [](const Arrays& x) {
    NDArray y = x[0].copy();
    y.assign(x[1]);
    return y;
  });
  return list;
}

class PlacedRefusals : public ::testing::Test {
 protected:
  test::DefaultEngine engine_{{.threads = 2, .logical_cpus = 2}};
  const Mesh mesh_{{{"tp", 2}}, test::device_kind()};
};

std::string without_line(const std::string& text) {
  return std::regex_replace(text, std::regex("\\] [^ ]*:[0-9]+: "), "] ");
}

/// What `text` says to do to the operands: those that lie as the one that it names; all that are not replicated where
/// it names none. False if it names no reshard.
bool do_what_it_says(const std::string& text, Arrays& operands) {
  static const std::regex advice(R"re(reshard\(x, \{\{"tp", (replicate|shard\((\d)\))\}\}\))re");
  static const std::regex operand(R"(operand (\d))"), listed(R"(\(([0-9, ]*)\) [a-z0-9]+ (tp:[a-z0-9()]+|replicate))");
  std::smatch found, named;
  if (!std::regex_search(text, found, advice)) return false;
  std::string lies;
  if (std::regex_search(text, named, operand)) {
    const int wanted = std::stoi(named[1]);
    int k = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), listed), end; it != end; ++it, ++k) {
      if (k == wanted) lies = (*it)[2];
    }
  }
  const sluice::Placement to = found[2].matched ? shard(std::stoi(found[2])) : replicate;
  const auto lies_so = [&](const NDArray& x) { return to_string(layout_of(x)) == lies; };
  if (std::ranges::none_of(operands, lies_so)) lies.clear();  // it is a view of the program's operand
  for (NDArray& x : operands) {
    if (!layout_of(x).replicated() && (lies.empty() || lies_so(x))) x = reshard(x, {{"tp", to}});
  }
  return true;
}

TEST_F(PlacedRefusals, EachIsOneLineAndItsAdviceHelps) {
  const NoGrad off;  // so that replicas are cut by themselves, where that is all that is missing
  std::ostringstream lines;
  int helped = 0, all = 0;
  for (const Wrong& wrong : wrong_programs()) {
    SCOPED_TRACE(wrong.name);
    Arrays plain, placed;
    std::uint64_t seed = 1;
    for (const Operand& one : wrong.operands) {
      RandomStream stream(++seed);
      const NDArray x =
          one.dtype == DType::i64 ? randint(one.shape, stream, 0, 4) : uniform(one.shape, stream, 0.5, 2, one.dtype);
      plain.push_back(x);
      placed.push_back(placed_as(x, Layout(mesh_, one.shape, {{"tp", one.lies}})));
    }
    ++all;
    std::string text = without_line(message([&] { wrong.program(placed); }));
    lines << wrong.name << "\n    " << text << "\n";
    EXPECT_EQ(text.find('\n'), text.npos);
    if (text.find("reshard(x, {") == text.npos) continue;
    for (int round = 0; round < 4 && do_what_it_says(text, placed); ++round) {
      text = without_line(message([&] { wrong.program(placed); }));
    }
    EXPECT_EQ(text, "nothing was thrown");
    if (text != "nothing was thrown") continue;
    EXPECT_LE(distance(doubles_of(wrong.program(plain)), put_together(wrong.program(placed), wrong.name)), 1e-9);
    ++helped;
  }
  EXPECT_GE(all, 40);
  EXPECT_GE(helped, 25);
  if (const char* file = std::getenv("SLUICE_WRITE_REFUSALS")) std::ofstream(file) << lines.str();
  std::ifstream in(SLUICE_SOURCE_DIR "/tests/operators/refusals.txt");
  std::stringstream wanted;
  wanted << in.rdbuf();
  EXPECT_EQ(lines.str(), wanted.str()) << "SLUICE_WRITE_REFUSALS=FILE writes what there is now";
}

}  // namespace
}  // namespace sluice::testing
