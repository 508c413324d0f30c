// What the tests of file formats share: tensors of every dtype and odd shape, and a fuzzer of valid files.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "sluice/ndarray/formats/host_tensor.h"
#include "sluice/tests/support/largest_allocation.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice::test {

inline std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int i = 0; i < kDTypeCount; ++i) all.push_back(static_cast<DType>(i));
  return all;
}

inline std::vector<Dims> odd_shapes() {
  return {{}, {0}, {1}, {7}, {3, 4}, {5, 0, 2}, {0, 0}, {2, 1, 3, 1, 2, 1, 2, 3}};
}

/// Bytes that depend on the seed; bools are 0 or 1.
inline HostTensor random_tensor(DType dtype, const Dims& shape, unsigned seed) {
  HostTensor tensor{dtype, shape, std::vector<std::byte>(static_cast<std::size_t>(shape.count()) * size_of(dtype))};
  std::mt19937 random(seed);
  for (auto& b : tensor.bytes) b = static_cast<std::byte>(dtype == DType::boolean ? random() % 2 : random() % 256);
  return tensor;
}

inline void expect_equal(const HostTensor& a, const HostTensor& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.bytes, b.bytes);
}

/// `load` must throw a FormatError of one line that names the file and contains `words`.
inline void expect_format_error(const std::filesystem::path& path, const std::string& words,
                                const std::function<void(const std::filesystem::path&)>& load) {
  try {
    load(path);
    ADD_FAILURE() << "loaded, wanted an error about: " << words;
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(path.filename().string()));
    EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("\n")));
  }
}

/// Cuts, grows and mutates a valid file in `rounds` seeded ways, the first `delicate` bytes most of all. Each result
/// must load or throw FormatError, and make no single allocation above `most(file size)` bytes.
inline void fuzz(const std::string& valid, std::size_t delicate, int rounds, unsigned seed,
                 const std::function<std::size_t(std::size_t)>& most,
                 const std::function<void(const std::filesystem::path&)>& load) {
  const TemporaryDirectory directory;
  const auto path = directory / "fuzzed";
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % std::max<std::size_t>(n, 1)); };
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string contents = valid;
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const std::size_t range =
          std::max<std::size_t>(below(4) == 0 ? contents.size() : std::min(delicate, contents.size()), 1);
      const std::size_t at = below(range);
      switch (below(7)) {
        case 0:
          contents.resize(std::min(at, contents.size()));
          break;
        case 1:
          contents.append(1 + below(40), static_cast<char>(random()));
          break;
        case 2:
          contents.erase(std::min(at, contents.size()), 1 + below(8));
          break;
        case 3:
          contents.insert(std::min(at, contents.size()), contents.substr(below(range), 1 + below(30)));
          break;
        case 4:
          if (at < contents.size()) contents[at] = static_cast<char>("0123456789{}[]()',\":-+.eE"[below(25)]);
          break;
        case 5:
          if (at < contents.size()) contents[at] = static_cast<char>(contents[at] ^ (1 << below(8)));
          break;
        default:
          if (at < contents.size()) contents[at] = below(2) == 0 ? '\xff' : '\0';
          break;
      }
    }
    write_file(path, contents);
    reset_largest_allocation();
    try {
      load(path);
    } catch (const FormatError&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << "round " << round << " of seed " << seed << ": " << error.what();
    }
    ASSERT_LE(largest_allocation(), most(contents.size())) << "round " << round << " of seed " << seed;
  }
  EXPECT_GT(refused, rounds / 2);
}

}  // namespace sluice::test
