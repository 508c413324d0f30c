// Which accesses to shared memory count as races.
#include "shared_races.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using ::testing::HasSubstr;

class Shared : public ::testing::Test {
 protected:
  void SetUp() override { races_.begin_block(); }
  const char* read(unsigned thread, std::size_t bytes = 4) { return races_.touch(kAt, bytes, thread, true, false); }
  const char* write(unsigned thread, std::size_t bytes = 4) { return races_.touch(kAt, bytes, thread, false, false); }
  const char* add(unsigned thread) { return races_.touch(kAt, 4, thread, false, true); }

  static constexpr std::uintptr_t kAt = 4096;
  cuda_double::SharedRaces races_;
};

TEST_F(Shared, AWriteAndAReadOfAnotherThreadNeedABarrierBetween) {
  EXPECT_EQ(write(0), nullptr);
  EXPECT_EQ(read(0), nullptr);
  EXPECT_THAT(read(40), HasSubstr("that another thread wrote since"));
  races_.meet_block();
  EXPECT_EQ(read(40), nullptr);
  EXPECT_EQ(read(41), nullptr);
  EXPECT_THAT(write(0), HasSubstr("that another thread read since"));
  races_.meet_block();
  EXPECT_EQ(write(0), nullptr);
}

TEST_F(Shared, TwoWritesNeedABarrierBetween) {
  EXPECT_EQ(write(3), nullptr);
  EXPECT_EQ(write(3), nullptr);
  EXPECT_THAT(write(4), HasSubstr("wrote, too"));
}

TEST_F(Shared, AWarpsBarrierOrdersItsOwnLanesAlone) {
  EXPECT_EQ(write(0), nullptr);
  races_.meet_warp(0);
  EXPECT_EQ(read(31), nullptr);
  EXPECT_EQ(read(30), nullptr);
  EXPECT_NE(read(32), nullptr);
  races_.meet_block();
  EXPECT_EQ(read(5), nullptr);
  EXPECT_EQ(read(6), nullptr);
  races_.meet_warp(0);
  EXPECT_EQ(write(0), nullptr);
  races_.meet_block();
  EXPECT_EQ(read(40), nullptr);
  races_.meet_warp(0);
  EXPECT_THAT(write(0), HasSubstr("read since"));
}

TEST_F(Shared, AtomicAccessesDoNotRaceWithEachOther) {
  EXPECT_EQ(write(0), nullptr);
  races_.meet_block();
  EXPECT_EQ(add(1), nullptr);
  EXPECT_EQ(add(2), nullptr);
  EXPECT_NE(read(3), nullptr);
}

TEST_F(Shared, WhatNoThreadOfTheBlockWroteIsNotRead) {
  EXPECT_THAT(read(0), HasSubstr("no thread"));
  EXPECT_EQ(write(0, 2), nullptr);
  EXPECT_EQ(read(0, 2), nullptr);
  EXPECT_THAT(read(0, 4), HasSubstr("no thread"));
  races_.begin_block();
  EXPECT_THAT(read(0, 2), HasSubstr("no thread"));
}

}  // namespace
