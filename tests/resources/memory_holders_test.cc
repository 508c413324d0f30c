// Which ops hold how much memory.
#include "sluice/resources/memory_holders.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

namespace sluice {
namespace {

TEST(MemoryHolders, AreToldByTextLargestFirst) {
  MemoryHolders holders;
  EXPECT_EQ(holders.in_words(4096), "");
  const std::string copy_of_name = "conv2d";  // another address
  const auto a = holders.find("conv2d", "encoder"), b = holders.find(copy_of_name.c_str(), "encoder"),
             c = holders.find("relu", "");
  EXPECT_EQ(holders.find(copy_of_name.c_str(), "encoder"), b);
  EXPECT_EQ(holders.find(nullptr, ""), 0U);
  holders.add(a, 1024);
  holders.add(b, 512);
  holders.add(c, 1024);
  holders.add(c, 1024);
  holders.add(0, 4096);  // of no op
  EXPECT_EQ(holders.in_words(3584), "\n  2.00 KiB  relu, 2 blocks\n  1.50 KiB  conv2d in encoder, 2 blocks");
  EXPECT_EQ(holders.in_words(3594),
            "\n  2.00 KiB  relu, 2 blocks\n  1.50 KiB  conv2d in encoder, 2 blocks\n  10 B  others");
  holders.remove(c, 1024);
  holders.remove(b, 512);
  EXPECT_EQ(holders.in_words(2048), "\n  1.00 KiB  conv2d in encoder, 1 block\n  1.00 KiB  relu, 1 block");
  holders.remove(a, 1024);
  holders.remove(c, 1024);
  EXPECT_EQ(holders.in_words(0), "");
}

TEST(MemoryHolders, FewLines) {
  MemoryHolders holders;
  std::deque<std::string> names;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < 20; ++i) {
    names.push_back("op" + std::to_string(i));
    holders.add(holders.find(names.back().c_str(), ""), 100 + i);
    sum += 100 + i;
  }
  EXPECT_EQ(holders.in_words(sum, 3), "\n  119 B  op19, 1 block\n  118 B  op18, 1 block\n  1.91 KiB  others");
}

}  // namespace
}  // namespace sluice
